"""urllib3 and httpx as an app's server uses them; plain sockets with the standard library's parser where no client of
Python does it: pipelining, requests that come a byte at a time, connections that break."""

import http.client
import io
import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import urllib3
from harness.tap import Tap

URL, KEY = os.environ["TIDINGS_URL"], os.environ["TIDINGS_API_KEY"]
HOST, PORT = urlsplit(URL).hostname, urlsplit(URL).port
BEARER = {"Authorization": f"Bearer {KEY}"}
JSON = {**BEARER, "Content-Type": "application/json"}
ENTRIES = 700


def pool(**options):
    return urllib3.HTTPConnectionPool(HOST, PORT, timeout=120, retries=False, **options)


def expect(answer, status, code=None):
    data = answer.data if hasattr(answer, "data") else answer.content
    actual = answer.status if hasattr(answer, "status") else answer.status_code
    assert actual == status, f"{actual}: {data[:300]!r}"
    if code:
        assert answer.headers["content-type"] == "application/problem+json", dict(answer.headers)
        problem = json.loads(data)
        assert problem["code"] == code and problem["status"] == status, problem
    return json.loads(data) if data else None


def message(number, **more):
    return {"from": "py-ada", "to": "py-ben", "client_msg_id": str(number), "body": {"n": number}, **more}


# Raw sockets.


class Raw:
    """A connection of our own, read by the standard library's parser."""

    def __init__(self):
        self.socket = socket.create_connection((HOST, PORT), timeout=120)
        self.reader = self.socket.makefile("rb")

    def write(self, data):
        self.socket.sendall(data)

    def answer(self, method="GET"):
        parsed = http.client.HTTPResponse(_Kept(self.reader), method=method)
        parsed.begin()
        return parsed.status, {name.lower(): value for name, value in parsed.getheaders()}, parsed.read()

    def is_closed(self):
        return self.reader.read(1) == b""

    def close(self):
        self.reader.close()
        self.socket.close()


class _Kept:
    """What http.client wants of a socket, without closing the reader that the next answer comes from."""

    def __init__(self, reader):
        self.reader = reader

    def makefile(self, *_):
        return _Unclosed(self.reader)


class _Unclosed(io.BufferedIOBase):
    def __init__(self, reader):
        self.reader = reader

    def read(self, size=-1):
        return self.reader.read(size)

    def read1(self, size=-1):
        return self.reader.read1(size)

    def readinto(self, buffer):
        return self.reader.readinto(buffer)

    def readline(self, size=-1):
        return self.reader.readline(size)

    def readable(self):
        return True


def request(method, path, body=None, version="1.1", headers=None, chunks=None):
    head = [f"{method} {path} HTTP/{version}", f"Host: {HOST}:{PORT}", f"Authorization: Bearer {KEY}"]
    data = b"" if body is None else json.dumps(body).encode()
    if body is not None:
        head.append("Content-Type: application/json")
        head.append("Transfer-Encoding: chunked" if chunks else f"Content-Length: {len(data)}")
    head += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if chunks:
        parts = [data[at:at + chunks] for at in range(0, len(data), chunks)]
        data = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


# Cases.


def kept_alive():
    with pool(maxsize=1) as connections:
        for number in range(50):
            expect(connections.request("GET", "/v1/users/py-ada", headers=BEARER), 200)
            expect(connections.request("POST", "/v1/messages", headers=JSON, body=json.dumps(message(f"kept-{number}"))), 200)
        assert connections.num_connections == 1, connections.num_connections


def kept_alive_after_refusals():
    """A refusal that was read to its end is no reason for a new connection."""
    with pool(maxsize=1) as connections:
        for _ in range(5):
            expect(connections.request("GET", "/v1/nowhere", headers=BEARER), 404, "not_found")
            expect(connections.request("POST", "/v1/messages", headers=JSON, body=b"{"), 400, "malformed")
            expect(connections.request("POST", "/v1/messages", headers=JSON, body=json.dumps(message("bad", type=7))), 422, "invalid_field")
            expect(connections.request("DELETE", "/v1/messages", headers=BEARER), 405, "method_not_allowed")
            expect(connections.request("GET", "/v1/users/py-ada", headers={"Authorization": "Bearer nobody"}), 401, "unauthorized")
            expect(connections.request("GET", "/v1/users/py-ada", headers=BEARER), 200)
        assert connections.num_connections == 1, connections.num_connections


def closed_when_asked():
    with pool() as connections:
        for _ in range(20):
            answer = connections.request("GET", "/v1/users/py-ada", headers={**BEARER, "Connection": "close"})
            expect(answer, 200)
            assert answer.headers["connection"].lower() == "close", dict(answer.headers)


def one_per_connection():
    for number in range(200):
        connection = http.client.HTTPConnection(HOST, PORT, timeout=120)
        connection.request("POST", "/v1/messages", json.dumps(message(f"single-{number}")), JSON)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert json.loads(answer.read())["conversation"] == "py-ada~py-ben"
        connection.close()


def chunked():
    def parts():
        text = json.dumps(message("chunked", body={"text": "x" * 40_000})).encode()
        for at in range(0, len(text), 1_000):
            yield text[at:at + 1_000]

    with pool() as connections:
        sent = expect(connections.request("POST", "/v1/messages", headers=JSON, body=parts(), chunked=True), 200)
        page = expect(connections.request("GET", f"/v1/conversations/py-ada~py-ben/messages?from_seq={sent['seq']}&limit=1", headers=BEARER), 200)
    assert page["entries"][0]["body"]["text"] == "x" * 40_000


def at_once():
    """50 connections send at once: every message has a number of its own, and there is no hole."""
    with httpx.Client(base_url=URL, headers=BEARER, timeout=120, limits=httpx.Limits(max_connections=50)) as client, ThreadPoolExecutor(50) as threads:
        expect(client.post("/v1/conversations", json={"id": "py-crowd", "kind": "group", "owner": "py-ada", "members": ["py-ben"]}), 201)
        sends = [{"conversation": "py-crowd", "from": "py-ada", "client_msg_id": f"m{number}", "body": number} for number in range(500)]
        answers = list(threads.map(lambda body: expect(client.post("/v1/messages", json=body), 200), sends))
        again = list(threads.map(lambda body: expect(client.post("/v1/messages", json=body), 200), sends))
    first = min(answer["seq"] for answer in answers)
    assert sorted(answer["seq"] for answer in answers) == list(range(first, first + 500))
    assert [answer["seq"] for answer in again] == [answer["seq"] for answer in answers]
    assert all(answer["duplicate"] for answer in again)


def history_forward_and_back():
    with httpx.Client(base_url=URL, headers=BEARER, timeout=120) as client:
        expect(client.post("/v1/conversations", json={"id": "py-long", "kind": "group", "owner": "py-ada"}), 201)
        for begin in range(0, ENTRIES, 100):
            batch = [{"conversation": "py-long", "from": "py-ada", "client_msg_id": f"h{n}", "body": {"n": n, "text": "é" * 500}} for n in range(begin, begin + 100)]
            results = expect(client.post("/v1/messages/batch", json={"messages": batch}), 200)["results"]
            assert len(results) == 100, results[:2]
        seen, next_seq = [], 1
        while True:
            page = expect(client.get("/v1/conversations/py-long/messages", params={"from_seq": next_seq, "limit": 90}), 200)
            if not page["entries"]:
                break
            assert [entry["seq"] for entry in page["entries"]] == list(range(next_seq, next_seq + len(page["entries"])))
            seen += page["entries"]
            next_seq = seen[-1]["seq"] + 1
        numbers = [entry["body"]["n"] for entry in seen if entry["kind"] == "message"]
        assert numbers == list(range(ENTRIES)), numbers[:5]
        newest = expect(client.get("/v1/conversations/py-long/messages", params={"limit": 10}), 200)["entries"]
        assert [entry["seq"] for entry in newest] == [entry["seq"] for entry in seen[-10:]]


def a_large_answer():
    """The largest page there is, taken a little at a time."""
    with httpx.Client(base_url=URL, headers=BEARER, timeout=120) as client:
        with client.stream("GET", "/v1/conversations/py-long/messages", params={"from_seq": 1, "limit": 500}) as answer:
            text = b"".join(answer.iter_bytes(1_000))
    assert len(text) > 100_000, len(text)
    assert json.loads(text)["entries"][0]["seq"] == 1


def pipelined():
    """40 requests, reads and sends in turn, in one write: 40 answers in their order."""
    raw = Raw()
    expected = []
    batch = b""
    for number in range(20):
        batch += request("GET", f"/v1/users/{'py-ada' if number % 2 else 'py-ben'}")
        batch += request("POST", "/v1/messages", message(f"pipe-{number}"), chunks=7 if number % 3 == 0 else None)
        expected.append("py-ada" if number % 2 else "py-ben")
    raw.write(batch)
    last = 0
    for user in expected:
        status, _, body = raw.answer()
        assert status == 200 and json.loads(body)["id"] == user, (status, body)
        status, _, body = raw.answer("POST")
        assert status == 200, (status, body)
        assert json.loads(body)["seq"] > last, "a pipeline is answered in order"
        last = json.loads(body)["seq"]
    raw.close()


def pipelined_with_refusals():
    raw = Raw()
    raw.write(
        request("GET", "/v1/nowhere") + request("DELETE", "/v1/messages") + request("HEAD", "/healthz")
        + request("POST", "/v1/messages", {"from": "py-ada"}) + request("GET", "/healthz", headers={"Connection": "close"})
    )
    answers = [raw.answer(method) for method in ("GET", "DELETE", "HEAD", "POST", "GET")]
    assert [status for status, _, _ in answers] == [404, 405, 200, 422, 200], answers
    assert answers[2][2] == b"" and answers[4][2] == b"ok\n", answers
    assert raw.is_closed()
    raw.close()


def the_next_comes_while_one_is_answered():
    """The second request comes in chunks that end anywhere, each while the first may be under way."""
    for cut in range(1, 120, 7):
        raw = Raw()
        second = request("POST", "/v1/messages", message(f"cut-{cut}"))
        raw.write(request("POST", "/v1/messages", message(f"cut-first-{cut}")) + second[:cut])
        assert raw.answer("POST")[0] == 200
        raw.write(second[cut:])
        assert raw.answer("POST")[0] == 200
        raw.close()


def a_byte_at_a_time():
    raw = Raw()
    raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in request("POST", "/v1/messages", message("bytes")):
        raw.write(bytes([byte]))
    status, _, body = raw.answer("POST")
    assert status == 200, body
    raw.close()


def http_1_0():
    raw = Raw()
    raw.write(request("GET", "/v1/users/py-ada", version="1.0"))
    status, headers, body = raw.answer()
    assert status == 200 and json.loads(body)["id"] == "py-ada" and "transfer-encoding" not in headers, headers
    assert raw.is_closed(), "without keep-alive HTTP/1.0 closes"
    raw.close()
    raw = Raw()
    for number in range(3):
        raw.write(request("POST", "/v1/messages", message(f"1.0-{number}"), version="1.0", headers={"Connection": "keep-alive"}))
        status, headers, body = raw.answer("POST")
        assert status == 200 and headers.get("connection", "").lower() == "keep-alive", (status, headers)
    raw.close()


def a_broken_send_is_retried():
    """The connection goes before the answer is read; the retry finds the message, whether it was stored or not."""
    for number in range(20):
        raw = Raw()
        raw.write(request("POST", "/v1/messages", message(f"broken-{number}")))
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        raw.close()
    with httpx.Client(base_url=URL, headers=BEARER, timeout=120) as client:
        numbers = [expect(client.post("/v1/messages", json=message(f"broken-{number}")), 200)["seq"] for number in range(20)]
        assert len(set(numbers)) == 20, numbers
        assert [expect(client.post("/v1/messages", json=message(f"broken-{number}")), 200)["seq"] for number in range(20)] == numbers


def too_large(size):
    """The answer arrives, though the client has not read a byte before it had written all."""
    with httpx.Client(base_url=URL, headers=JSON, timeout=120) as client:
        expect(client.post("/v1/messages", content=json.dumps(message("large", body="z" * size))), 413, "limit_exceeded")


def no_http():
    """What cannot be read is answered, all of it is said before the end, and the connection ends."""
    head = f"Host: {HOST}\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n".encode()
    for name, text, status in [
        ("a header of 100 KB", b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        ("300 headers", b"GET /healthz HTTP/1.1\r\n" + b"".join(b"X%d: a\r\n" % n for n in range(300)) + b"\r\n", 431),
        ("a target of 70 KB", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + head + b"\r\n", 431),
        ("no request", b"NONSENSE\r\n\r\n", 400),
        ("a handshake of TLS", bytes([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]) + bytes(600), 400),
        ("HTTP/0.9", b"GET /healthz\r\n\r\n", 400),
        ("two lengths", b"POST /v1/messages HTTP/1.1\r\n" + head + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", 400),
        ("a length that is none", b"POST /v1/messages HTTP/1.1\r\n" + head + b"Content-Length: +2\r\n\r\n{}", 400),
        ("a coding that is none", b"POST /v1/messages HTTP/1.1\r\n" + head + b"Transfer-Encoding: gzip\r\n\r\n", 400),
        ("chunks that are none", b"POST /v1/messages HTTP/1.1\r\n" + head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400),
    ]:
        for begin in [b"", request("GET", "/healthz")]:
            raw = Raw()
            raw.write(begin + text)
            if begin:
                assert raw.answer()[0] == 200, f"before {name}"
            assert (answer := raw.answer())[0] == status, f"{name}: {answer}"
            assert raw.is_closed(), name
            raw.close()


def both_lengths_are_no_way_in():
    """A length and chunks: whatever a proxy before us goes by, there is one request and one answer."""
    raw = Raw()
    inner = request("GET", "/healthz")
    raw.write(request("POST", "/v1/messages", headers={"Content-Type": "application/json", "Transfer-Encoding": "chunked", "Content-Length": str(5 + len(inner))}) + b"0\r\n\r\n" + inner)
    status, headers, _ = raw.answer("POST")
    assert status in (400, 422), status
    assert headers.get("connection", "").lower() == "close" and raw.is_closed(), headers
    raw.close()


def an_offer_costs_no_refusal():
    """Java's client offers h2c with its first request. What is refused early is told it all the same, while it still sends."""
    text = json.dumps(message("large", body="z" * 8_000_000)).encode()
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"}
    for _ in range(5):
        raw = Raw()
        raw.write(request("POST", "/v1/messages", headers={**offer, "Content-Type": "application/json", "Content-Length": str(len(text))}))
        for at in range(0, len(text), 16_384):
            raw.write(text[at:at + 16_384])
        assert (answer := raw.answer("POST"))[0] == 413, answer
        assert raw.is_closed()
        raw.close()


def methods():
    with httpx.Client(base_url=URL, headers=BEARER, timeout=120) as client:
        full, head = client.get("/v1/users/py-ada"), client.head("/v1/users/py-ada")
        assert head.status_code == 200 and head.content == b"", head.content
        assert head.headers["content-length"] == str(len(full.content)), head.headers
        refused = client.options("/v1/messages")
        assert refused.status_code == 405 and "POST" in refused.headers["allow"], refused.headers


def gzip():
    with httpx.Client(base_url=URL, headers={**BEARER, "Accept-Encoding": "gzip, deflate, br, zstd"}, timeout=120) as client:
        assert expect(client.get("/v1/users/py-ada"), 200)["id"] == "py-ada"


def an_export_is_streamed():
    with httpx.Client(base_url=URL, headers=BEARER, timeout=120) as client:
        popup = {"state": "live", "placements": ["py"], "variants": [{"id": "a", "content": {"title": "Hi"}}]}
        assert client.put("/v1/popups/py-hello", json=popup).status_code in (200, 201)
        decision = expect(client.post("/v1/popups/decide", json={"user": "py-ada", "placement": "py"}), 200)["decision"]
        events = [{"id": f"py-{n}", "type": "click", "decision": decision} for n in range(1_000)]
        expect(client.post("/v1/popup-events", json={"events": events}), 202)
        with client.stream("GET", "/v1/popup-events", params={"popup": "py-hello", "format": "jsonl"}) as answer:
            assert answer.status_code == 200, answer.read()
            lines = [json.loads(line) for line in answer.iter_lines() if line]
    ids = {line["id"] for line in lines}
    assert ids >= {f"py-{n}" for n in range(1_000)}, len(ids)


tap = Tap(f"urllib3 {urllib3.__version__}, httpx {httpx.__version__}")
with pool() as first:
    made = {"users": [{"id": "py-ada"}, {"id": "py-ben"}]}
    tap.case("users are made", lambda: expect(first.request("PUT", "/v1/users", headers=JSON, body=json.dumps(made)), 200))
tap.case("100 requests on one connection", kept_alive)
tap.case("a connection outlives refusals", kept_alive_after_refusals)
tap.case("Connection: close", closed_when_asked)
tap.case("200 connections, a send on each", one_per_connection)
tap.case("a chunked body", chunked)
tap.case("500 sends on 50 connections, and their retries", at_once)
tap.case("history by pages, forward", history_forward_and_back)
tap.case("a large answer, taken slowly", a_large_answer)
tap.case("40 requests in one write", pipelined)
tap.case("refusals in a pipeline, then close", pipelined_with_refusals)
tap.case("a second request in chunks beside the first", the_next_comes_while_one_is_answered)
tap.case("a request a byte at a time", a_byte_at_a_time)
tap.case("HTTP/1.0, closed and kept alive", http_1_0)
tap.case("a send whose connection was reset is retried", a_broken_send_is_retried)
tap.case("300 KB too much is 413", lambda: too_large(300_000))
tap.case("8 MB too much is 413", lambda: too_large(8_000_000))
tap.case("what is no HTTP is answered, also behind a request", no_http)
tap.case("a request with a length and chunks is the last one", both_lengths_are_no_way_in)
tap.case("an offer of h2c costs no refusal", an_offer_costs_no_refusal)
tap.case("HEAD and OPTIONS", methods)
tap.case("other encodings are offered, and may be left", gzip)
tap.case("an export is streamed", an_export_is_streamed)
tap.end()
