"""Event streams through a proxy that forbids upgrades: Debian's nginx without a word about streams, as it comes."""

import os
import subprocess
from pathlib import Path

import httpx
from harness.proxies import Proxy, nginx_configuration, program
from harness.server import Server
from harness.tap import Tap
from harness.through import PATIENCE_S, Through

SCRATCH = Path(os.environ["INTEROP_TMP"])
NGINX = program("nginx")
file = SCRATCH / "nginx.conf"


def configure(ports):
    """No HTTP/1.1 towards the server, no headers of an upgrade, buffering and short time-outs on: nginx's defaults."""
    file.write_text(nginx_configuration(SCRATCH, f"""
        listen 127.0.0.1:{ports[0]};
        location / {{ proxy_pass http://{server.http}; }}"""))


def no_upgrade():
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    answer = httpx.get(f"{through.url}/v1/connect", headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == 400 and "not a WebSocket handshake" in answer.text, answer.text


def a_pause_is_bridged():
    """nginx ends what is silent for 60 s; comments come four times as often."""
    with through.client() as client:
        stream = through.stream(client, "upgrades-ada")
        assert stream.opened["keep_alive_ms"] * 2 < 60_000


version = subprocess.run([NGINX, "-v"], capture_output=True, text=True, check=True).stderr.strip().rsplit("/", 1)[-1]
tap = Tap(f"nginx {version}")
with Server({"http_connections_per_address_max": 20_000}) as server:
    with Proxy([NGINX, "-g", "daemon off;", "-c", file], configure, 1, SCRATCH / "nginx.log") as proxy:
        through = Through(tap, server, f"http://127.0.0.1:{proxy.ports[0]}", "upgrades")
        tap.case("a WebSocket is answered with 400", no_upgrade)
        tap.case("users are made", through.users)
        tap.case("messages both ways, a cut, unbind", through.event_stream)
        tap.case("comments come before nginx's time-out", a_pause_is_bridged)
tap.end()
