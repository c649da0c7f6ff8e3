"""Certificates as an authority issues them, by openssl: a root, one in between, and the server's own."""

import subprocess
from pathlib import Path


class Authority:
    """`Authority(folder)` writes `root.pem`; `issue("one")` writes `one.pem` (the server's and the intermediate) and `one.key`."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.root = self.folder / "root.pem"
        self._new("root", "/CN=Interop root", "-x509", "-days", "2", "-addext", "basicConstraints=critical,CA:TRUE", "-out", self.root)
        self._sign("between", "/CN=Interop intermediate", "root", "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=keyCertSign\n")

    def issue(self, name, names="DNS:localhost,DNS:tidings.test,IP:127.0.0.1", new_key=("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
              usage="serverAuth", days=2):
        """A certificate and its chain in one file, and its key. Answers with the two paths. One of 0 days has expired when it is there."""
        self._sign(f"{name}-alone", f"/CN={name}", "between", f"subjectAltName={names}\nextendedKeyUsage={usage}\n", new_key, days)
        chain, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        chain.write_text((self.folder / f"{name}-alone.pem").read_text() + (self.folder / "between.pem").read_text())
        (self.folder / f"{name}-alone.key").rename(key)
        return chain, key

    def _new(self, name, subject, *more, new_key=("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")):
        openssl("req", "-new", *new_key, "-nodes", "-subj", subject, "-keyout", self.folder / f"{name}.key", *more)

    def _sign(self, name, subject, by, extensions, new_key=("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"), days=2):
        request, config = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        self._new(name, subject, "-out", request, new_key=new_key)
        config.write_text(extensions)
        openssl(
            "x509", "-req", "-in", request, "-CA", self.folder / f"{by}.pem", "-CAkey", self.folder / f"{by}.key",
            "-CAcreateserial", "-days", str(days), "-extfile", config, "-out", self.folder / f"{name}.pem",
        )


def openssl(*arguments, **options):
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False, **options)
    assert done.returncode == 0, f"openssl {' '.join(map(str, arguments))}: {done.stderr}"
    return done.stdout


def serial(certificate):
    """The serial number of the first certificate of a file, as `s_client` and `x509` print it."""
    return openssl("x509", "-in", certificate, "-noout", "-serial").strip().removeprefix("serial=")
