"""deploy/nginx.conf as it stands, apart from addresses and paths, run by Debian's nginx."""

import asyncio
import os
import re
import signal
import ssl
import subprocess
import time
from pathlib import Path

import tomllib
import websockets
from harness.certificates import Authority
from harness.proxies import Proxy, nginx_folders, program, substituted
from harness.server import Server
from harness.tap import Tap
from harness.through import PATIENCE_S, Through

SCRATCH = Path(os.environ["INTEROP_TMP"])
ROOT = Path(os.environ["INTEROP"]).parent
HOST = "chat.example.com"
CONFIG = (ROOT / "deploy/nginx.conf").read_text()
NGINX = program("nginx")
authority = Authority(SCRATCH / "authority")
certificate, key = authority.issue("nginx", names=f"DNS:{HOST}")
file = SCRATCH / "nginx.conf"


def configure(ports, upstream=None):
    """The file with this machine's addresses and paths. `user` names who may read what only root can write."""
    file.write_text(substituted(
        CONFIG,
        ("user www-data;", "user root;" if os.geteuid() == 0 else "# not root"),
        ("/run/nginx.pid", f"{SCRATCH}/nginx.pid"),
        ("/var/log/nginx/", f"{SCRATCH}/"),
        ("server 127.0.0.1:8080;", f"server {upstream or server.http};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{ports[0]} ssl;"),
        ("/etc/nginx/tls/fullchain.pem", str(certificate)),
        ("/etc/nginx/tls/privkey.pem", str(key)),
        ("worker_rlimit_nofile 65536;", "worker_rlimit_nofile 4096;"),
        ("worker_connections 32768;", "worker_connections 2048;"),
        ("\nhttp {\n", f"\nhttp {{\n{nginx_folders(SCRATCH)}"),
    ))


def test_config():
    done = subprocess.run([NGINX, "-t", "-c", file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "warn" not in done.stderr, done.stderr


def not_for_clients():
    for path in ["/metrics", "/v1/admin/nodes"]:
        assert through.get(path).status_code == 404, path
    assert through.get("/readyz").status_code == 200


def silence_is_not_taken_for_an_end():
    heartbeat_ms = tomllib.loads((ROOT / "tidings.sample.toml").read_text())["session"]["heartbeat_ms"]
    websocket = CONFIG[CONFIG.index("location = /v1/connect"):]
    read_timeout_s = int(re.search(r"proxy_read_timeout (\d+)s", websocket)[1])
    assert read_timeout_s > 1.5 * heartbeat_ms / 1_000 + 10, (read_timeout_s, heartbeat_ms)


def connections_are_kept():
    """A request does not cost a connection to the server: nginx's log names one, the server's counts fewer than requests."""
    for _ in range(50):
        assert through.get("/v1/users/nginx-ada").status_code == 200
    log = server.log()
    opened = log.count("connected client=")
    assert 0 < opened < 100, f"{opened} connections for more than 200 requests and sessions"


def a_server_that_went_is_resumed():
    """502 while it is away, no connection hangs; on another port and a reload later the cursor brings what was missed."""

    async def before():
        async with through.session() as session:
            cursor = (await through.bound(session, "nginx-ben"))["cursor"]
            await asyncio.to_thread(server.stop)
            await asyncio.wait_for(session.wait_closed(), PATIENCE_S)
            return cursor

    async def connected():
        """As an app does it: a refused connection is tried again."""
        for _ in range(100):
            try:
                return await through.session()
            except websockets.InvalidStatus:
                await asyncio.sleep(0.1)
        raise AssertionError("no WebSocket through nginx")

    async def after(cursor):
        async with await connected() as session:
            bound = await through.bound(session, "nginx-ben", cursor=cursor)
            assert bound["resume"]["complete"] is True, bound
            frame = await through.next(session, "messages")
            assert frame["entries"][-1]["body"] == "while away", frame

    cursor = asyncio.run(before())
    away = through.get("/readyz")
    assert away.status_code == 502, (away.status_code, away.text)
    server.start()
    configure(proxy.ports)
    proxy.signal(signal.SIGHUP)

    def sent():
        """A worker that is about to end may take it still, and know no other server than the former: then it is sent again."""
        with through.client() as client:
            body = {"from": "nginx-ada", "to": "nginx-ben", "client_msg_id": "away", "body": "while away"}
            return through.call(client, "POST", "/v1/messages", json=body).status_code == 200

    end = time.monotonic() + PATIENCE_S
    while not sent():
        assert time.monotonic() < end, "nginx did not find the server again"
        time.sleep(0.1)
    asyncio.run(after(cursor))


version = subprocess.run([NGINX, "-v"], capture_output=True, text=True, check=True).stderr.strip().rsplit("/", 1)[-1]
tap = Tap(f"nginx {version}")
# As deploy/nginx.conf asks for: all clients have one address here.
SETTINGS = {"log.level": "info,tidings_api=debug", "http_connections_max": 1_000, "http_connections_per_address_max": 1_000}
with Server(SETTINGS) as server:
    with Proxy([NGINX, "-g", "daemon off;", "-c", file], configure, 1, SCRATCH / "nginx.log") as proxy:
        tap.case("nginx takes deploy/nginx.conf", test_config)
        through = Through(tap, server, f"https://127.0.0.1:{proxy.ports[0]}", "nginx", ssl.create_default_context(cafile=authority.root), HOST)
        through.all()
        tap.case("what is not for clients is 404", not_for_clients)
        tap.case("its time-out is above the longest silence", silence_is_not_taken_for_an_end)
        tap.case("connections to the server are kept", connections_are_kept)
        tap.case("a server that went away is resumed", a_server_that_went_is_resumed)
tap.end()
