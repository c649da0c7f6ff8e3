#!/usr/bin/env python3
"""Tries what scripts/release.sh has made in target/dist, each as its user would, as far as one machine can.

    scripts/try-release.py [--dist FOLDER]

- The sums are right, and the program of an architecture is the same in its archive, its package and the image.
- The bill of materials has the libraries of the program, and nothing of the lab or of this machine.
- The image: its configuration; each architecture's files as a root folder, where its program starts as the image's user, is
  healthy by the image's own check, and passes interop's http/smoke: a message is sent and read back, also after a restart.
  That of another processor runs under qemu-user.
- The Debian package of this machine's architecture, in an empty Debian: installed, http/smoke as its unit starts it, upgraded
  (the server is restarted, changed settings stay), removed, purged (messages stay unless the administrator says otherwise).
- The packages of npm, in an empty project: sdk/packages and sdk/node.

Needs root, mmdebstrap, unshare, and interop/setup.sh. Takes some minutes.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "interop"))

from harness.server import Server  # noqa: E402

PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}
OWN = next(architecture for architecture, processor in PROCESSORS.items() if processor == platform.machine())
VERSION = next(line.split('"')[1] for line in (ROOT / "Cargo.toml").read_text(encoding="utf-8").splitlines() if line.startswith("version = "))
USER = "10001"


def expect(condition, problem):
    if not condition:
        sys.exit(f"scripts/try-release.py: {problem}")


def said(*command, **options):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    expect(done.returncode == 0, f"{shlex.join(map(str, command))} ended with {done.returncode}: {done.stdout}")
    return done.stdout


def passes(suites, program, **environment):
    """The suites of interop/ whose names these are, against a program."""
    said(ROOT / "interop/run", *suites, "--server", program, env={**os.environ, **environment})


def digest(stream):
    return hashlib.file_digest(stream, "sha256").hexdigest()


def executable(file, text):
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)
    return file


def program_within(file, root, home, user, command, environment):
    """A program that runs `command` within a root folder, as a container or a unit would: as its user, with its folder of data, and
    with its variables where the caller has not set them."""
    variables = "\n".join(f"[ -n \"${{{name}+x}}\" ] || export {name}={shlex.quote(value)}" for name, value in environment.items())
    return executable(file, f"""#!/bin/sh
set -e
{variables}
mkdir -p "$TIDINGS_DATA_DIR"
chown {user} "$TIDINGS_DATA_DIR"
exec unshare --mount sh -c '
    mount --bind "$TIDINGS_DATA_DIR" {root}{home}
    mount --rbind /dev {root}/dev
    mount --rbind /proc {root}/proc
    export TIDINGS_DATA_DIR={home}
    exec chroot --userspec={user} {root} {shlex.join(command)} "$@"' sh "$@"
""")


# What is in an archive.


def check_sums(dist):
    said("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=dist)
    named = {line.split()[1] for line in (dist / "SHA256SUMS").read_text(encoding="utf-8").splitlines()}
    here = {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    expect(named == here, f"SHA256SUMS and the folder differ in {named ^ here}")


def check_bill(dist):
    text = (dist / f"tidings-{VERSION}.cdx.json").read_text(encoding="utf-8")
    names = {component["name"] for component in json.loads(text)["components"]}
    expect({"tokio", "fjall", "opentelemetry"} <= names and "tidings-lab" not in names, f"the bill of materials names {sorted(names)}")
    expect(str(ROOT) not in text, "the bill of materials names a folder of this machine")


def digest_in_archive(dist, architecture):
    name = f"tidings-{VERSION}-linux-{PROCESSORS[architecture]}"
    with tarfile.open(dist / f"{name}.tar.gz") as archive:
        return digest(archive.extractfile(f"{name}/tidings"))


def digest_in_package(dist, architecture):
    package = dist / f"tidings_{VERSION.replace('-', '~')}_{architecture}.deb"
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacked:
        with tarfile.open(fileobj=unpacked.stdout, mode="r|") as archive:
            return next(digest(archive.extractfile(member)) for member in archive if member.name == "./usr/bin/tidings")


def unpack_image(dist, architecture, folder):
    """One architecture's files as a root folder, by the OCI image layout; its configuration."""
    layout = folder / "layout"
    if not layout.exists():
        layout.mkdir()
        said("tar", "-x", "-f", dist / f"tidings-{VERSION}-image.tar", "-C", layout)

    def blob(reference):
        return layout / "blobs" / reference["digest"].replace(":", "/")

    def read(reference):
        return json.loads(blob(reference).read_text(encoding="utf-8"))

    index = read(json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"][0])
    manifest = read(next(each for each in index["manifests"] if each["platform"] == {"architecture": architecture, "os": "linux"}))
    root = folder / architecture
    root.mkdir()
    for layer in manifest["layers"]:
        said("tar", "-x", "-f", blob(layer), "-C", root, "--numeric-owner")
    configuration = read(manifest["config"])
    expect(configuration["architecture"] == architecture, f"{architecture} is called {configuration['architecture']}")
    return root, configuration["config"]


# How each is used.


def try_image(root, configuration, architecture, folder):
    expect(configuration["User"] == USER and configuration["StopSignal"] == "SIGTERM", f"the image's configuration: {configuration}")
    expect(configuration["Entrypoint"] + configuration["Cmd"] == ["tidings", "serve"], f"the image starts {configuration}")
    home = configuration["WorkingDir"]
    environment = dict(each.split("=", 1) for each in configuration["Env"])
    expect(environment["TIDINGS_DATA_DIR"] == home and list(configuration["Volumes"]) == [home], "data, volume and working folder differ")
    for volume in (home, f"{home}-backups"):
        state = (root / volume[1:]).stat()
        expect((state.st_uid, state.st_mode & 0o777) == (int(USER), 0o700), f"a new volume at {volume} would not be for the image's user alone")
    expect(not (root / "etc/resolv.conf").exists() and not (root / "etc/hostname").exists(), "the image has names of the machine that made it")
    emulator = []
    if architecture != OWN:
        emulator = ["/emulator"]
        shutil.copy(shutil.which(f"qemu-{PROCESSORS[architecture]}-static"), root / "emulator")
    program = program_within(folder / f"image-{architecture}", root, home, f"{USER}:0", [*emulator, "/usr/local/bin/tidings"], environment)
    healthy = program_within(folder / f"ready-{architecture}", root, home, f"{USER}:0", [*emulator, "/bin/bash", "/usr/local/bin/tidings-ready"], environment)
    with Server(program=program) as server:
        port = server.http.rsplit(":", 1)[1]
        said(healthy, port, env={"PATH": os.environ["PATH"], "TIDINGS_DATA_DIR": str(server.data)})
        expect(server.stop() == 0, f"a stop failed: {server.log()}")
    passes(["http/smoke"], program)


def installed_debian(folder, suite):
    """An empty Debian with what the package depends on, whose systemctl writes down what it is told."""
    root = folder / "debian"
    said("mmdebstrap", "--quiet", "--variant=essential", "--include=adduser,debconf", suite, root)
    executable(root / "usr/bin/systemctl", '#!/bin/sh\necho "$*" >> /told\n[ "$*" != "is-enabled --quiet tidings.service" ] || exit 0\n')
    (root / "run/systemd/system").mkdir(parents=True)
    (root / "usr/sbin/policy-rc.d").unlink(missing_ok=True)
    return root


def try_package(dist, folder, suite, program):
    root = installed_debian(folder, suite)
    settings, data = root / "etc/tidings/tidings.env", root / "var/lib/tidings"

    def within(*command, **options):
        return said("chroot", root, "env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", *command, **options)

    def told():
        with contextlib.suppress(FileNotFoundError):
            lines = (root / "told").read_text(encoding="utf-8").splitlines()
            (root / "told").unlink()
            return lines
        return []

    def install(package):
        shutil.copy(package, root / "tidings.deb")
        return within("dpkg", "--install", "/tidings.deb")

    package = dist / f"tidings_{VERSION.replace('-', '~')}_{OWN}.deb"
    words = install(package)
    expect("systemctl enable --now tidings" in words, f"an installation does not say how it starts: {words}")
    within("getent", "passwd", "tidings")
    expect(settings.stat().st_mode & 0o777 == 0o600, "others may read the settings")
    expect(not any("start" in line for line in told()), "it was started without keys")

    # As its unit starts it.
    unit = dict(line.split("=", 1) for line in (root / "usr/lib/systemd/system/tidings.service").read_text(encoding="utf-8").splitlines()
                if "=" in line and not line.startswith("#"))
    expect("DynamicUser" not in unit and unit["EnvironmentFile"] == "/etc/tidings/tidings.env", f"the unit: {unit}")
    environment = dict(line.split("=", 1) for line in settings.read_text(encoding="utf-8").splitlines() if "=" in line and not line.startswith("#"))
    command = shlex.split(unit["ExecStart"])
    expect(command == ["/usr/bin/tidings", "serve"], f"the unit starts {command}")
    data.mkdir()
    ids = within("sh", "-c", "echo $(id -u tidings):$(id -g tidings)").strip()
    passes(["http/smoke"], program_within(folder / "package", root, "/var/lib/tidings", ids, command[:1], environment))

    # An upgrade: changed settings stay, and the server that runs is restarted.
    (data / "messages").write_text("kept", encoding="utf-8")
    settings.write_text(settings.read_text(encoding="utf-8").replace("TIDINGS_API_KEY=", "TIDINGS_API_KEY=changed"), encoding="utf-8")
    newer = said(ROOT / "scripts/package-deb.sh", folder, OWN, program, f"{VERSION}+1", env={**os.environ, "DEB_COMPRESSION": "none"}).strip()
    told()
    install(newer)
    restarted = told()
    expect("daemon-reload" in " ".join(restarted) and any("try-restart" in line for line in restarted), f"an upgrade told systemd {restarted}")
    expect("KEY=changed" in settings.read_text(encoding="utf-8"), "an upgrade has changed the settings")

    # Removed: the settings and the messages are still there. Purged: the messages.
    within("dpkg", "--remove", "tidings")
    removed = told()
    expect(any("stop" in line for line in removed), f"a removal told systemd {removed}")
    expect(settings.exists() and not (root / "usr/bin/tidings").exists(), "a removal is not one")
    within("dpkg", "--purge", "tidings")
    expect(not (root / "etc/tidings").exists(), "a purge leaves settings")
    expect((data / "messages").exists(), "a purge has deleted messages without being asked")
    install(package)
    within("debconf-set-selections", input="tidings tidings/delete-data boolean true\n")
    within("dpkg", "--purge", "tidings")
    expect(not data.exists(), "a purge leaves messages that were to be deleted")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "dist")
    dist = parser.parse_args().dist.resolve()
    expect(os.getuid() == 0, "a root folder is entered by root alone")
    suite = next(line.split(":")[1].split("-")[0] for line in (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").splitlines() if line.startswith("FROM debian:"))
    check_sums(dist)
    check_bill(dist)
    print("ok  sums, bill of materials", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # Users other than root pass through it.
        folder.chmod(0o755)
        for architecture in PROCESSORS:
            root, configuration = unpack_image(dist, architecture, folder)
            with open(root / "usr/local/bin/tidings", "rb") as file:
                digests = {digest(file), digest_in_archive(dist, architecture), digest_in_package(dist, architecture)}
            expect(len(digests) == 1, f"{architecture} has {len(digests)} programs")
            try_image(root, configuration, architecture, folder)
            print(f"ok  image, {architecture}: healthy as user {USER}, a message sent and kept over a restart", flush=True)
        own = folder / OWN / "usr/local/bin/tidings"
        try_package(dist, folder, suite, own)
        print(f"ok  Debian package, {OWN}: installed, a message sent, upgraded, removed, purged", flush=True)
        passes(["sdk/packages", "sdk/node"], own, PACKED=str(dist))
        print("ok  packages of npm: installed into an empty project, messages sent", flush=True)
    for file in sorted(dist.iterdir()):
        print(f"{file.stat().st_size / 1e6:8.1f} MB  {file.name}")


if __name__ == "__main__":
    main()
