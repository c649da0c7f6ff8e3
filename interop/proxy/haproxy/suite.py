"""Debian's HAProxy: deploy/haproxy/haproxy.cfg over one node, and the configuration of docs/operations/reverse-proxy.md, which
passes TLS on with a PROXY header of version 2. Both as they stand, apart from addresses."""

import os
import re
import socket
import ssl
import struct
import subprocess
import time
from pathlib import Path

from harness.api import token
from harness.certificates import Authority
from harness.proxies import Proxy, program, substituted
from harness.server import Server
from harness.tap import Tap
from harness.through import PATIENCE_S, Through

SCRATCH = Path(os.environ["INTEROP_TMP"])
ROOT = Path(os.environ["INTEROP"]).parent
HAPROXY = program("haproxy")
HOST = "chat.example.com"
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
authority = Authority(SCRATCH / "authority")
certificate, key = authority.issue("server", names=f"DNS:{HOST},DNS:localhost")
ASK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def number(value):
    text = b""
    while value > 127:
        text += bytes([value & 127 | 128])
        value >>= 7
    return text + bytes([value])


def field(tag, value):
    return bytes([tag]) + number(len(value)) + value


def binds(connection, user, key):
    """A device binds, by hand after docs/miop.md."""
    bind = field(1, number(1)) + field(2, token(user, key=key).encode()) + field(3, b"phone")
    connection.sendall(b"\x02" + number(len(bind)) + bind)
    answer = connection.recv(4_096)
    assert answer[0] == 3 and user.encode() in answer, answer


def dial(address, source="127.0.0.1"):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S, source_address=(source, 0))


def reads(connection):
    text = b""
    try:
        while part := connection.recv(65_536):
            text += part
    except ConnectionResetError:
        pass
    return text


def until(what, check):
    end = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE_S} s"
        time.sleep(0.1)


def checked(file):
    done = subprocess.run([HAPROXY, "-c", "-f", file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stderr and "ALERT" not in done.stderr, done.stderr


# deploy/haproxy/haproxy.cfg


def sample(ports):
    text = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
    # One node instead of three, whose names nobody needs to be asked for.
    text = re.sub(r"(?ms)^resolvers docker\n.*?\n\n", "", text)
    text = re.sub(r"(?m)^    server [bc] .*\n", "", text)
    (SCRATCH / "sample.cfg").write_text(substituted(
        text,
        (" init-addr last,libc,none resolvers docker", ""),
        ("check port 8080", f"check port {server.http.rsplit(':', 1)[1]}"),
        ("maxconn 200000", "maxconn 1000"),
        ("bind :8080", f"bind 127.0.0.1:{ports[0]}"),
        ("bind :8081", f"bind 127.0.0.1:{ports[1]}"),
        ("tidings-a:8080", server.http),
        ("tidings-a:8081", server.miop),
    ))


version = subprocess.run([HAPROXY, "-v"], capture_output=True, text=True, check=True).stdout.split()[2]
tap = Tap(f"HAProxy {version}")
with Server() as server, Proxy([HAPROXY, "-f", SCRATCH / "sample.cfg"], sample, 2, SCRATCH / "sample.log") as proxy:
    tap.case("HAProxy takes deploy/haproxy/haproxy.cfg", lambda: checked(SCRATCH / "sample.cfg"))
    balanced = Through(tap, server, f"http://127.0.0.1:{proxy.ports[0]}", "balanced")
    tap.case("its check finds the node ready", lambda: until("a node that is up", lambda: balanced.get("/readyz").status_code == 200))
    balanced.all()
    tap.case("metrics are not for clients", lambda: balanced.get("/metrics").status_code == 404)

    def device():
        with dial(f"127.0.0.1:{proxy.ports[1]}") as connection:
            binds(connection, "balanced-ada", server.token_key)

    tap.case("a device binds through it", device)


# docs/operations/reverse-proxy.md


def documented(ports):
    page = (ROOT / "docs/operations/reverse-proxy.md").read_text()
    text = re.search(r"(?s)```haproxy\n(.*?)```", page)[1]
    text = re.sub(r"(?m)^    server b .*\n", "", text)
    (SCRATCH / "documented.cfg").write_text(substituted(
        text,
        ("maxconn 200000", "maxconn 1000"),
        ("port 8080", f"port {server.http.rsplit(':', 1)[1]}"),
        ("bind :443", f"bind 127.0.0.1:{ports[0]}"),
        ("bind :8444", f"bind 127.0.0.1:{ports[1]}"),
        ("bind 10.0.0.10:8080", f"bind 127.0.0.1:{ports[2]}"),
        ("10.0.0.11:8443", server.listeners["https"]),
        ("10.0.0.11:8444", server.listeners["miop_tls"]),
        ("10.0.0.11:8080", server.http),
    ))


SETTINGS = {
    "http_tls_listen": "127.0.0.1:0",
    "miop_tls_listen": "127.0.0.1:0",
    "tls.certificate_file": certificate,
    "tls.key_file": key,
    "proxy_protocol": "true",
    "proxy_protocol_from": "127.0.0.1/32",
    "log.level": "info,tidings_api=debug,tidings_gateway=debug",
}
with Server(SETTINGS) as server, Proxy([HAPROXY, "-f", SCRATCH / "documented.cfg"], documented, 3, SCRATCH / "documented.log") as proxy:
    tap.case("HAProxy takes the documented configuration", lambda: checked(SCRATCH / "documented.cfg"))
    def trusting():
        return ssl.create_default_context(cafile=authority.root)

    passed_on = Through(tap, server, f"https://127.0.0.1:{proxy.ports[0]}", "passed", trusting(), HOST)
    inside = Through(tap, server, f"http://127.0.0.1:{proxy.ports[2]}", "inside")

    def ready():
        """Until its own check, which sends a header for nobody, has been answered."""
        try:
            return inside.get("/readyz").status_code == 200 and passed_on.get("/readyz").status_code == 200
        except Exception:  # noqa: BLE001 - HAProxy closes while it knows no node
            return False

    tap.case("its check, with a LOCAL header, finds the node ready", lambda: until("a node that is up", ready))
    passed_on.all()
    inside.all()

    def client_of_https():
        with dial(f"127.0.0.1:{proxy.ports[0]}", "127.0.0.77") as plain, trusting().wrap_socket(plain, server_hostname=HOST) as connection:
            port = connection.getsockname()[1]
            connection.sendall(ASK)
            assert reads(connection).startswith(b"HTTP/1.1 200")
        until("the client's address in the log", lambda: f"client=127.0.0.77:{port}" in server.log())

    tap.case("the server sees the address of a client of HTTPS, not the proxy's", client_of_https)

    def client_of_miop():
        with dial(f"127.0.0.1:{proxy.ports[1]}", "127.0.0.78") as plain, trusting().wrap_socket(plain, server_hostname="localhost") as connection:
            port = connection.getsockname()[1]
            binds(connection, "passed-ada", server.token_key)
        until("the device's address in the log", lambda: f"peer=127.0.0.78:{port}" in server.log())

    tap.case("the server sees the address of a device, through TLS", client_of_miop)

    # What a balancer does not send, or somebody else does.

    def header(command=0x21, family=0x11, payload=None):
        addresses = bytes([203, 0, 113, 9]) + bytes([127, 0, 0, 1]) + struct.pack(">HH", 4321, 80) if payload is None else payload
        return SIGNATURE + bytes([command, family]) + struct.pack(">H", len(addresses)) + addresses

    def answered(begin, address=None):
        with dial(address or server.http) as connection:
            connection.sendall(begin + ASK)
            return reads(connection)

    tap.case("a header by hand is taken from the trusted network", lambda: answered(header()).startswith(b"HTTP/1.1 200"))
    tap.case("one for IPv6, too", lambda: answered(header(family=0x21, payload=bytes(32) + b"\1\2\3\4")).startswith(b"HTTP/1.1 200"))
    tap.case("values after the addresses are skipped", lambda: answered(header(payload=bytes(12) + b"\x04\x00\x05hello")).startswith(b"HTTP/1.1 200"))
    for listener in ["http", "https", "miop", "miop_tls"]:
        tap.case(f"without a header a connection to {listener} is closed without an answer", lambda listener=listener: answered(b"", server.listeners[listener]) == b"")
    for line in ["TCP4 203.0.113.9 127.0.0.1 4321 80", "TCP6 2001:db8::9 ::1 4321 80", "UNKNOWN"]:
        tap.case(f"a line of version 1 is taken: {line}", lambda line=line: answered(f"PROXY {line}\r\n".encode()).startswith(b"HTTP/1.1 200"))
    tap.case("a line of version 1 without its end is closed", lambda: answered(b"PROXY TCP4 203.0.113.9 127.0.0.1 4321 80 ") == b"")
    tap.case("a line of version 1 that never ends is closed", lambda: answered(b"PROXY UNKNOWN " + b"x" * 65_536) == b"")
    tap.case("a header of version 3 is closed", lambda: answered(header(command=0x31)) == b"")
    tap.case("a header of 64 KB is closed", lambda: answered(header(payload=bytes(65_535))) == b"")
    tap.case("a header cut short and ended is closed", lambda: answered(header()[:20])[:12] != b"HTTP/1.1 200")

    def from_elsewhere():
        """The same bytes from an address that is not the balancer's."""
        believed = server.log().count("203.0.113.9")
        assert believed > 0, "of the headers by hand"
        for listener in ["http", "https", "miop", "miop_tls"]:
            with dial(server.listeners[listener], "127.0.0.2") as connection:
                connection.sendall(header() + ASK)
                assert reads(connection) == b"", listener
        assert server.log().count("203.0.113.9") == believed, "what a stranger wrote was believed"

    tap.case("a header from an untrusted network is not believed, and closed", from_elsewhere)
    tap.case("and the server goes on", lambda: inside.get("/readyz").status_code == 200 and server.is_running())
tap.end()
