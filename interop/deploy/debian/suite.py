"""What scripts/package-deb.sh packs, from the program that is tested: its fields, its files, and that its unit is the one of deploy/."""

import os
import re
import subprocess
from pathlib import Path

from harness.tap import Tap

ROOT = Path(os.environ["INTEROP"]).parent
FOLDER = Path(os.environ["INTEROP_TMP"])


def said(*command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options).stdout


def pack(version):
    variables = {**os.environ, "DEB_COMPRESSION": "none"}
    return said(ROOT / "scripts/package-deb.sh", FOLDER, "amd64", os.environ["TIDINGS_BIN"], version, env=variables).strip()


tap = Tap(re.search(r"version (\S+)", said("dpkg-deb", "--version"))[0].replace("version", "dpkg-deb"))
package = pack("0.9.0-rc.1")
said("dpkg-deb", "--raw-extract", package, FOLDER / "root")
root = FOLDER / "root"


def control():
    fields = dict(line.split(": ", 1) for line in said("dpkg-deb", "--field", package).splitlines() if not line.startswith(" "))
    assert (fields["Package"], fields["Architecture"], fields["Version"]) == ("tidings", "amd64", "0.9.0~rc.1"), fields
    assert re.search(r"libc6 \(>= 2\.\d+\)", fields["Depends"]), fields["Depends"]
    assert "@" not in (root / "DEBIAN/control").read_text().replace("tidings@", ""), "a placeholder is left"


def order():
    """A candidate is older than its release, and that than the next."""
    for older, newer in [("0.9.0~rc.1", "0.9.0"), ("0.9.0", "0.10.0")]:
        subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)


def files():
    lines = [line.split() for line in said("dpkg-deb", "--contents", package).splitlines()]
    assert all(owner == "root/root" for _, owner, *_ in lines), lines
    found = {path.removeprefix("."): mode for mode, _, _, _, _, path, *_ in lines if not path.endswith("/")}
    doc = "/usr/share/doc/tidings"
    examples = ["nginx.conf", "sysctl.conf", "tidings.sample.toml"]
    public = [f"{doc}/{name}" for name in ["CHANGELOG.md.gz", "changelog.gz", "copyright", *(f"examples/{name}" for name in examples)]]
    expected = {name: "-rw-r--r--" for name in [*public, "/usr/lib/systemd/system/tidings.service"]}
    expected.update({"/usr/bin/tidings": "-rwxr-xr-x", "/etc/tidings/tidings.env": "-rw-------"})
    assert found == expected, set(found.items()) ^ set(expected.items())
    assert (root / "DEBIAN/conffiles").read_text() == "/etc/tidings/tidings.env\n", "an upgrade would overwrite settings"
    said("md5sum", "--check", "--quiet", "DEBIAN/md5sums", cwd=root)


def unit():
    """Of the unit in deploy/ all is kept but where the program is and who makes its user."""
    def lines(path):
        return {line for line in path.read_text().splitlines() if "=" in line and not line.startswith("#")}
    changed = lines(root / "usr/lib/systemd/system/tidings.service") ^ lines(ROOT / "deploy/systemd/tidings.service")
    assert changed == {"ExecStart=/usr/bin/tidings serve", "ExecStart=/usr/local/bin/tidings serve", "DynamicUser=yes"}, changed


def scripts():
    for name in ("postinst", "prerm", "postrm"):
        assert os.access(root / "DEBIAN" / name, os.X_OK), name
        said("sh", "-n", root / "DEBIAN" / name)


tap.case("its fields are those of the program that is in it", control)
tap.case("a candidate's version comes before its release's", order)
tap.case("it has these files, each root's, with settings that root alone reads and upgrades keep", files)
tap.case("its unit is the one of deploy/systemd, with the package's program and user", unit)
tap.case("what it runs when it is installed and removed are programs of sh", scripts)
tap.end()
