"""What a stranger and a greedy caller can take of the HTTP listener: raw sockets of Python against a small server of its own."""

import json
import socket
import sys
import time

from harness.api import api
from harness.server import Server
from harness.tap import Tap

PLACES, BODIES = 40, 16 << 20
# Whatever must happen has happened by then, on a slow machine too.
PATIENCE = 60


def until(what, holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def connect(address):
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def ask(address, path, key=""):
    """The status of an answer on a connection of its own; None when it was closed without one."""
    with connect(address) as one:
        try:
            one.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            while part := one.recv(65536):
                answer += part
        except ConnectionError:
            return None
    return int(answer.split(b" ")[1]) if answer else None


def figure(address, name):
    with connect(address) as one:
        one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = b""
        while part := one.recv(65536):
            text += part
    values = [line.rsplit(" ", 1)[1] for line in text.decode().splitlines() if line.startswith(name + " ")]
    return float(values[0]) if values else 0.0


def strangers():
    """Four times as many as there are places: silent ones, and ones in the middle of a head."""
    crowd = []
    for number in range(4 * PLACES):
        one = connect(server.http)
        try:
            if number % 2:
                one.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-")
        except OSError:
            pass  # turned away already
        crowd.append(one)
    try:
        for path in ("/healthz", "/readyz", "/metrics"):
            until(f"{path} is not answered", lambda: ask(server.http, path) == 200)
        until("a caller is not answered", lambda: ask(server.http, "/v1/users/nobody", server.api_key) == 404)
        # The app server has a reserve; for who has no credential another stranger gives way.
        until("a caller without a key is not answered", lambda: ask(server.http, "/v1/users/nobody") == 401)
    finally:
        for one in crowd:
            one.close()


def known_stay():
    # Those of the case before are gone when the server has seen it.
    until("a caller is not answered", lambda: ask(server.http, "/v1/users/nobody", server.api_key) == 404)
    with connect(server.http) as known:
        question = f"GET /v1/users/nobody HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.api_key}\r\n\r\n".encode()
        known.sendall(question)
        assert b" 404 " in known.recv(65536)
        strangers()
        known.sendall(question)
        assert b" 404 " in known.recv(65536)


def own_listener():
    health = server.listeners["health"]
    assert [ask(health, path) for path in ("/healthz", "/readyz", "/metrics", "/v1/users/x")] == [200, 200, 200, 404]


def bodies():
    """Unfinished batches hold no more than the budget, and single sends go on."""
    head = f"POST /v1/messages/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.api_key}\r\nContent-Length: {8 << 20}\r\n\r\n"
    crowd = []
    for _ in range(12):
        one = connect(server.http)
        one.sendall(head.encode() + b" " * (6 << 20))
        crowd.append(one)
    until("none was refused", lambda: figure(server.http, 'tidings_refused_total{code="queue_full"}') > 0)
    assert figure(server.http, 'tidings_queue_depth{queue="http_body_bytes"}') <= BODIES * 3 / 4
    for _ in range(5):
        body = {"from": "limits-ada", "to": "limits-ben", "body": "x" * 65_000}
        api("POST", "/v1/messages", body, url=server.url, key=server.api_key)
    for one in crowd:
        one.close()
    until("bytes are held for nobody", lambda: figure(server.http, 'tidings_queue_depth{queue="http_body_bytes"}') == 0)


def slow_body():
    """A body of which nothing more comes is given up, and its caller told."""
    with connect(server.http) as one:
        one.sendall(f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.api_key}\r\nContent-Length: 100\r\n\r\n{{".encode())
        answer = b""
        while part := one.recv(65536):
            answer += part
        assert b" 400 " in answer and b"too slowly" in answer, answer


def deep(path, request, field):
    for levels, taken in ((64, True), (65, False), (20_000, False)):
        value = "[" * levels + "]" * levels
        status, _, answer = raw(path, request.replace("DEEP", value))
        assert (status < 300) is taken, f"{levels}: {status} {answer}"
        assert taken or (answer["code"] == "limit_exceeded" and field in answer["detail"]), answer


def raw(path, text):
    # json of Python itself gives up at such depths: the text is written by hand.
    with connect(server.http) as one:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.api_key}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        one.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
        answer = b""
        while part := one.recv(65536):
            answer += part
    head, body = answer.split(b"\r\n\r\n", 1)
    return int(head.split(b" ")[1]), head, json.loads(body)


tap = Tap(f"raw sockets, Python {sys.version.split()[0]}")
settings = {"http_connections_max": PLACES, "http_body_bytes_max": BODIES, "health_listen": "127.0.0.1:0"}
with Server(settings=settings) as server:
    api("PUT", "/v1/users", {"users": [{"id": "limits-ada"}, {"id": "limits-ben"}]}, url=server.url, key=server.api_key)
    tap.case("idle strangers do not shut the listener", strangers)
    tap.case("who has shown a credential stays", known_stay)
    tap.case("health has a listener of its own", own_listener)
    tap.case("strangers that gave way are counted", lambda: figure(server.http, "tidings_http_connections_evicted_total") > 0)
    tap.case("unfinished bodies share a budget", bodies)
    tap.case("a body that does not come is given up", slow_body)
    tap.case("a message is so deep", lambda: deep("/v1/messages", '{"from":"limits-ada","to":"limits-ben","body":DEEP}', "body"))
    tap.case("a push is so deep", lambda: deep("/v1/push", '{"to":{"users":["limits-ada"]},"type":"t","body":DEEP,"dry_run":true}', "body"))
tap.end()
