"""The Caddyfile of docs/operations/reverse-proxy.md as it stands, apart from addresses, run by Debian's Caddy. Its certificates
come from an authority on the network, so that here it speaks without TLS."""

import os
import re
import subprocess
import time
from pathlib import Path

from harness.proxies import Proxy, program, substituted
from harness.server import Server
from harness.tap import Tap
from harness.through import PATIENCE_S, Through

SCRATCH = Path(os.environ["INTEROP_TMP"])
ROOT = Path(os.environ["INTEROP"]).parent
CADDY = program("caddy")
file = SCRATCH / "Caddyfile"
# Where Caddy keeps what it would be for certificates.
os.environ.update(HOME=str(SCRATCH), XDG_DATA_HOME=str(SCRATCH), XDG_CONFIG_HOME=str(SCRATCH))


def documented():
    page = (ROOT / "docs/operations/reverse-proxy.md").read_text()
    return re.search(r"(?s)```caddyfile\n(.*?)```", page)[1]


def configure(ports):
    text = substituted(documented(), ("chat.example.com", f"http://127.0.0.1:{ports[0]}"), ("127.0.0.1:8080", server.http))
    file.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + text)


def checked():
    whole = SCRATCH / "Caddyfile.documented"
    whole.write_text(documented())
    done = subprocess.run([CADDY, "adapt", "--adapter", "caddyfile", "--config", whole, "--validate"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def ready():
    """Caddy asks the server for the first time soon after its start."""
    end = time.monotonic() + PATIENCE_S
    while through.get("/readyz").status_code != 200:
        assert time.monotonic() < end, "Caddy did not find the server ready"
        time.sleep(0.1)


version = subprocess.run([CADDY, "version"], capture_output=True, text=True, check=True).stdout.split()[0]
tap = Tap(f"Caddy {version}")
with Server({"http_connections_max": 1_000, "http_connections_per_address_max": 1_000}) as server, Proxy([CADDY, "run", "--adapter", "caddyfile", "--config", file], configure, 1, SCRATCH / "caddy.log") as proxy:
    tap.case("Caddy takes the documented Caddyfile", checked)
    through = Through(tap, server, f"http://127.0.0.1:{proxy.ports[0]}", "caddy")
    tap.case("its check finds the server ready", ready)
    through.all()
    tap.case("what is not for clients is 404", lambda: [through.get(path).status_code for path in ["/metrics", "/v1/admin/nodes", "/healthz"]] == [404, 404, 200])
tap.end()
