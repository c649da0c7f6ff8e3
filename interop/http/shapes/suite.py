"""Every shape that a request may have on the wire, by raw sockets: none is left without its answer.

Methods and paths on both ways through the server, bodies by length and in chunks, HTTP/1.1 and 1.0, awaited bodies, cuts at odd places,
and whatever may follow: line ends, whole and partial further requests, garbage, a closed sending half.
"""

import itertools
import os
import socket
import sys
from urllib.parse import urlsplit

sys.path.insert(0, os.environ["INTEROP"])
from harness.api import api  # noqa: E402
from harness.tap import Tap  # noqa: E402

KEY = os.environ["TIDINGS_API_KEY"]
ADDRESS = urlsplit(os.environ["TIDINGS_URL"])
# An answer that was not there by then does not come: a slow machine needs a part of it.
PATIENCE = float(os.environ.get("SHAPES_PATIENCE", "30"))

SEND = ("POST", "/v1/messages", b'{"conversation":"shapes","from":"shapes-ada","body":{"text":"hello"}}', KEY, 200)
DECIDE = ("POST", "/v1/popups/decide", b'{"user":"shapes-ada","placement":"shapes"}', KEY, 204)
REPORT = ("POST", "/v1/popup-events", b'{"events":[{"id":"1","decision":"unknown","type":"click"}]}', KEY, 422)
READ = ("GET", "/v1/conversations/shapes/messages?limit=1", b"", KEY, 200)
HEALTH = ("GET", "/healthz", b"", KEY, 200)
HEAD = ("HEAD", "/healthz", b"", KEY, 200)
NOWHERE = ("POST", "/v1/nowhere", b"{}", KEY, 404)
STRANGER = ("POST", "/v1/messages", b"{}", "nobody's", 401)
WRONG = ("POST", "/v1/messages", b"{", KEY, 400)

LENGTH, CHUNKS = "length", "chunks"
ENDS = {
    "nothing": b"",
    "a line end": b"\r\n",
    "three line ends": b"\r\n\r\n\r\n",
    "part of a line": b"POST /v1/mess",
    "part of a question": b"POST /v1/popups/dec",
    "part of a head": b"GET /healthz HTTP/1.1\r\nHost: ",
    "a head without its body": b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{",
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\xff",
    "garbage with lines": b"what is\r\nthis\r\n\r\n",
    "a closed half": None,
}
GARBAGE = ("garbage", "garbage with lines")


class Closed(Exception):
    pass


class Connection:
    def __init__(self):
        self.socket = socket.create_connection((ADDRESS.hostname, ADDRESS.port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.read = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def more(self):
        part = self.socket.recv(65536)
        self.read += part
        return bool(part)

    def until(self, end):
        while end not in self.read:
            if not self.more():
                raise Closed(f"closed after {self.read!r}")
        before, self.read = self.read.split(end, 1)
        return before

    def exactly(self, count):
        while len(self.read) < count:
            if not self.more():
                raise Closed(f"closed after {self.read!r}")
        taken, self.read = self.read[:count], self.read[count:]
        return taken

    def answer(self, method="GET"):
        """Status, headers, body of the next final answer."""
        while True:
            lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            status = int(lines[0].split(" ")[1])
            headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines[1:])}
            if status != 100:
                break
        if method == "HEAD" or status in (204, 304):
            return status, headers, b""
        if "chunked" in headers.get("transfer-encoding", ""):
            body = b""
            while size := int(self.until(b"\r\n"), 16):
                body += self.exactly(size)
                self.exactly(2)
            self.until(b"\r\n")
            return status, headers, body
        return status, headers, self.exactly(int(headers.get("content-length", "0")))

    def at_end(self):
        return not self.read and not self.more()


def request(asked, framing=LENGTH, version="1.1", headers=""):
    method, path, body, key, _ = asked
    head = f"{method} {path} HTTP/{version}\r\nHost: shapes\r\nAuthorization: Bearer {key}\r\n{headers}"
    if not body:
        return (head + "\r\n").encode()
    head += "Content-Type: application/json\r\n"
    if framing == LENGTH:
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    half = len(body) // 2
    parts = b"".join(b"%x;of=two\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + parts + b"0\r\n\r\n"


def cuts(whole, head, by):
    if by == "whole":
        return [whole]
    if by == "byte by byte":
        return [whole[at : at + 1] for at in range(len(whole))]
    at = sorted({3, head - 2, head, min(head + 5, len(whole) - 1), len(whole) - 1})
    return [whole[start:end] for start, end in zip([0, *at], [*at, len(whole)]) if start < end]


def shape(asked, raw, end, by, closes=False):
    with Connection() as connection:
        head = raw.index(b"\r\n\r\n") + 4
        chunks = cuts(raw, head, by)
        for chunk in chunks[:-1]:
            connection.socket.sendall(chunk)
        # What follows a request comes with its last bytes.
        connection.socket.sendall(chunks[-1] + (ENDS[end] or b""))
        if ENDS[end] is None:
            connection.socket.shutdown(socket.SHUT_WR)
        status, headers, body = connection.answer(asked[0])
        assert status == asked[4], f"{status} instead of {asked[4]}: {body!r}"
        if status == 200 and asked[1] == "/v1/messages":
            assert b'"seq":' in body, body
        if closes or headers.get("connection") == "close" or ENDS[end] is None:
            assert connection.at_end(), f"more than one answer: {connection.read!r}"
        elif end in GARBAGE:
            status, headers, body = connection.answer()
            assert status == 400 and connection.at_end(), f"{status} {connection.read!r}"


def follow(first, second, count, by):
    """One request behind the other in one packet: as many answers, in order."""
    with Connection() as connection:
        whole = b"".join(request(asked) for _ in range(count) for asked in (first, second))
        for chunk in cuts(whole, len(request(first)), by):
            connection.socket.sendall(chunk)
        for _ in range(count):
            for asked in (first, second):
                status, _, body = connection.answer(asked[0])
                assert status == asked[4], f"{status} instead of {asked[4]}: {body!r}"


def early(bytes_, status):
    """Refused while it is still being written: the answer can be read, and no reset is in its way."""
    with Connection() as connection:
        connection.socket.sendall(bytes_)
        found, _, body = connection.answer()
        assert found == status, f"{found} instead of {status}: {body!r}"
        assert connection.at_end()


api("PUT", "/v1/users", {"users": [{"id": "shapes-ada"}, {"id": "shapes-ben"}]})
api("POST", "/v1/conversations", {"id": "shapes", "kind": "group", "owner": "shapes-ada", "members": ["shapes-ben"]})
tap = Tap(f"raw sockets, Python {sys.version.split()[0]}")

for asked, end, by in itertools.product((SEND, DECIDE, REPORT, READ, HEALTH, HEAD, NOWHERE, STRANGER, WRONG), ENDS, ("whole", "odd places")):
    name = f"{asked[0]} {asked[1]} ({asked[4]}), {by}, followed by {end}"
    tap.case(name, lambda: shape(asked, request(asked), end, by))
for asked, end in itertools.product((SEND, DECIDE), ENDS):
    tap.case(f"{asked[1]}, chunks, followed by {end}", lambda: shape(asked, request(asked, CHUNKS), end, "odd places"))
    awaited = request(asked, headers="Expect: 100-continue\r\n")
    tap.case(f"{asked[1]}, an awaited body, followed by {end}", lambda: shape(asked, awaited, end, "odd places"))
for asked, (version, headers), end in itertools.product(
    (SEND, DECIDE, READ, NOWHERE), (("1.1", "Connection: close\r\n"), ("1.0", "")), ENDS
):
    last = request(asked, version=version, headers=headers)
    name = f"{asked[1]}, HTTP/{version} {headers.strip()}, followed by {end}"
    tap.case(name, lambda: shape(asked, last, end, "whole", closes=True))
for asked in (SEND, DECIDE, READ):
    tap.case(f"{asked[1]}, byte by byte", lambda: shape(asked, request(asked), "a line end", "byte by byte"))
    kept = request(asked, version="1.0", headers="Connection: keep-alive\r\n")
    tap.case(f"{asked[1]}, HTTP/1.0 kept alive", lambda: shape(asked, kept, "part of a line", "whole"))
for first, second in itertools.permutations((SEND, DECIDE, READ, NOWHERE), 2):
    for by in ("whole", "odd places"):
        name = f"{first[1]} and {second[1]} ten times over, {by}"
        tap.case(name, lambda: follow(first, second, 10, by))
LONG = b"x" * 300_000
for name, bytes_, status in (
    ("a head that is too long", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + LONG + b"\r\n\r\n", 431),
    ("a path that is too long", b"GET /" + LONG + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    ("a question's head that is too long", b"POST /v1/popups/decide HTTP/1.1\r\nX: " + LONG + b"\r\n\r\n", 431),
    ("no request at all", b"\x00\x01\x02" + LONG, 400),
    ("a body that is too long", request(SEND[:2] + (b" " * 30_000_000,) + SEND[3:]), 413),
    ("a question that is too long", request(DECIDE[:2] + (b" " * 30_000_000,) + DECIDE[3:]), 413),
    ("a stranger's long body", request(STRANGER[:2] + (b" " * 5_000_000,) + STRANGER[3:]), 401),
):
    tap.case(f"{name} is answered with {status}", lambda: early(bytes_, status))
tap.end()
