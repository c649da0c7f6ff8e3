"""deploy/nginx.conf as it stands, and the `stream` block of docs/operations/reverse-proxy.md, which passes TLS on with a PROXY header of
version 1. Both apart from addresses and paths, run by Debian's nginx."""

import asyncio
import os
import re
import signal
import socket
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
STREAM_MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")


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


def configure_stream(ports):
    page = (ROOT / "docs/operations/reverse-proxy.md").read_text()
    text = substituted(
        re.search(r"(?s)```nginx\n(.*?)```", page)[1],
        ("listen 443;", f"listen 127.0.0.1:{ports[0]};"),
        ("listen 8444;", f"listen 127.0.0.1:{ports[1]};"),
        ("10.0.0.11:8443", behind.listeners["https"]),
        ("10.0.0.11:8444", behind.listeners["miop_tls"]),
    )
    user = "user root;" if os.geteuid() == 0 else ""
    head = f"load_module {STREAM_MODULE};\n{user}\npid {SCRATCH}/stream.pid;\nerror_log {SCRATCH}/stream-error.log;\nevents {{}}\n"
    (SCRATCH / "stream.conf").write_text(head + text)


def seen_through(port, source, send, log):
    """A client at this address sends through nginx; the server's log must have the client's address."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S, source_address=(source, 0)) as plain:
        own_port = plain.getsockname()[1]
        with ssl.create_default_context(cafile=authority.root).wrap_socket(plain, server_hostname=HOST) as connection:
            connection.sendall(send)
            answer = connection.recv(65_536)
    end = time.monotonic() + PATIENCE_S
    while f"{log}={source}:{own_port}" not in behind.log():
        assert time.monotonic() < end, f"{log}={source}:{own_port} is not in the log"
        time.sleep(0.1)
    return answer


def client_of_https():
    ask = f"GET /healthz HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()
    assert seen_through(stream.ports[0], "127.0.0.77", ask, "client").startswith(b"HTTP/1.1 200")


def client_of_miop():
    # A kind that nobody knows: the server answers with an Error.
    assert seen_through(stream.ports[1], "127.0.0.78", b"\x7f\x00", "peer")


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

BEHIND = {
    "http_tls_listen": "127.0.0.1:0",
    "miop_tls_listen": "127.0.0.1:0",
    "tls.certificate_file": certificate,
    "tls.key_file": key,
    "proxy_protocol": "true",
    "proxy_protocol_from": "127.0.0.1/32",
    "log.level": "info,tidings_api=debug,tidings_gateway=debug",
}
with Server(BEHIND) as behind:
    with Proxy([NGINX, "-g", "daemon off;", "-c", SCRATCH / "stream.conf"], configure_stream, 2, SCRATCH / "stream.log") as stream:
        tap.case("through its stream module the server sees the address of a client of HTTPS", client_of_https)
        tap.case("through its stream module the server sees the address of a device", client_of_miop)
tap.end()
