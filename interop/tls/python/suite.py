"""Python's ssl: HTTPS by httpx, wss by websockets, MIOP by a socket; connections that outlive a new certificate, ends that
are told, and clients that speak something else."""

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import time
from pathlib import Path

import httpx
import websockets
from harness.api import api, token
from harness.certificates import Authority
from harness.event_stream import EventStream
from harness.server import Server
from harness.tap import Tap

SCRATCH = Path(os.environ["INTEROP_TMP"])
PATIENCE_S = 120
authority = Authority(SCRATCH / "authority")
one, two = authority.issue("one"), authority.issue("two")
SHOWN = (SCRATCH / "certificate.pem", SCRATCH / "key.pem")


def show(issued):
    for source, target in zip(issued, SHOWN):
        shutil.copy(source, target.with_suffix(".new"))
        os.replace(target.with_suffix(".new"), target)


def context(version=None):
    made = ssl.create_default_context(cafile=authority.root)
    if version:
        made.minimum_version = made.maximum_version = version
    return made


def dial(listener, version=None, **options):
    host, port = server.listeners[listener].rsplit(":", 1)
    plain = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    return context(version).wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False, **options)


def exchange(connection, text):
    connection.sendall(text)
    parts = []
    # An end that is not told by close_notify raises SSLEOFError here.
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def https(version):
    connection = dial("https", version)
    answer = exchange(connection, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"ok\n"), answer
    connection.close()


def url():
    return f"https://localhost:{server.listeners['https'].rsplit(':', 1)[1]}"


def by_httpx():
    """Sends of 60 KB and a page of them: records of TLS end where requests do not."""
    with httpx.Client(base_url=url(), verify=context(), headers={"Authorization": f"Bearer {server.api_key}"}, timeout=PATIENCE_S) as client:
        assert client.put("/v1/users", json={"users": [{"id": "tls-ada"}, {"id": "tls-ben"}]}).status_code == 200
        for number in range(10):
            sent = client.post("/v1/messages", json={"from": "tls-ada", "to": "tls-ben", "client_msg_id": f"m{number}", "body": chr(97 + number) * 60_000})
            assert sent.status_code == 200, sent.text
        page = client.get("/v1/conversations/tls-ada~tls-ben/messages", params={"from_seq": 1}).json()
    assert [entry["body"][0] for entry in page["entries"]] == list("abcdefghij"), page["entries"][0]["body"][:10]
    assert all(len(entry["body"]) == 60_000 for entry in page["entries"])


def wrong_authority():
    stranger = Authority(SCRATCH / "stranger")
    try:
        httpx.get(f"{url()}/healthz", verify=ssl.create_default_context(cafile=stranger.root), timeout=PATIENCE_S)
    except httpx.ConnectError as error:
        assert "certificate verify failed" in str(error), error
        return
    raise AssertionError("a certificate of nobody known was taken")


def by_event_stream(version):
    """The head is written by one library and the events by another, in one TLS session."""
    with httpx.Client(base_url=url(), verify=context(version), timeout=PATIENCE_S) as client:
        ada, ben = (EventStream(client, token(f"tls-{who}", key=server.token_key), "s").begin() for who in ("ada", "ben"))
        body = "ß" * 25_000
        ada.send("tls-ben", body)
        assert ben.have(1) == [body]
        assert ada.unbind() == (1000, "") and ben.unbind() == (1000, "")


def by_websocket(version=None):
    async def run():
        address = url().replace("https", "wss") + "/v1/connect"
        async with websockets.connect(address, ssl=context(version), open_timeout=PATIENCE_S) as session:
            await session.send(json.dumps({"t": "bind", "token": token("tls-ben", key=server.token_key), "device_id": "d"}))
            bound = json.loads(await asyncio.wait_for(session.recv(), PATIENCE_S))
            assert bound["t"] == "bound" and bound["user"] == "tls-ben", bound
            body = "ü" * 25_000
            await session.send(json.dumps({"t": "send", "ref": 1, "to": "tls-ada", "body": {"text": body}}, ensure_ascii=False))
            kinds = {}
            while not {"messages", "sent"} <= kinds.keys():
                frame = json.loads(await asyncio.wait_for(session.recv(), PATIENCE_S))
                assert frame["t"] != "error", frame
                kinds[frame["t"]] = frame
            assert kinds["sent"]["results"][0]["ref"] == 1, kinds["sent"]
            assert kinds["messages"]["entries"][-1]["body"]["text"] == body
            await session.send(json.dumps({"t": "unbind"}))
            await asyncio.wait_for(session.wait_closed(), PATIENCE_S)

    asyncio.run(run())


def number(value):
    text = b""
    while value > 127:
        text += bytes([value & 127 | 128])
        value >>= 7
    return text + bytes([value])


def field(tag, value):
    return bytes([tag]) + number(len(value)) + value


def read_frame(connection):
    def exactly(count):
        text = b""
        while len(text) < count:
            part = connection.recv(count - len(text))
            assert part, "the connection ended within a frame"
            text += part
        return text

    kind, length, shift = exactly(1)[0], 0, 0
    while True:
        byte = exactly(1)[0]
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return kind, exactly(length)


def by_miop(version=None):
    """Bind, Bound, a heartbeat and its echo, Unbind: by hand, after docs/miop.md."""
    connection = dial("miop_tls", version)
    bind = field(1, number(1)) + field(2, token("tls-ben", key=server.token_key).encode()) + field(3, b"phone")
    connection.sendall(b"\x02" + number(len(bind)) + bind)
    kind, payload = read_frame(connection)
    assert kind == 3 and b"tls-ben" in payload, (kind, payload)
    connection.sendall(b"\x01\x00")
    assert read_frame(connection) == (1, b"")
    connection.sendall(b"\x07\x00")
    assert connection.recv(1) == b"", "told by close_notify"
    connection.close()


def an_open_connection_outlives_a_new_certificate():
    connection = dial("https")
    ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    connection.sendall(ask)
    assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
    before = connection.getpeercert()["serialNumber"]
    show(two)
    os.kill(server.process.pid, signal.SIGHUP)
    end = time.monotonic() + PATIENCE_S
    while dial("https").getpeercert()["serialNumber"] == before:
        assert time.monotonic() < end, "the new certificate was not taken"
        time.sleep(0.1)
    rest = connection.recv(65_536) if connection.pending() else b""
    connection.sendall(ask.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    while part := connection.recv(65_536):
        rest += part
    assert b"HTTP/1.1 200" in rest, rest
    connection.close()


def something_else(listener, text):
    """Whatever is no handshake ends the connection; nobody waits for it."""
    host, port = server.listeners[listener].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as plain:
        plain.sendall(text)
        try:
            while plain.recv(4_096):
                pass
        except ConnectionResetError:
            pass


def half_a_handshake(listener):
    """Who leaves in the middle of a handshake leaves nothing behind: others come in."""
    host, port = server.listeners[listener].rsplit(":", 1)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = outgoing.read()
    for cut in range(0, len(hello), 37):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as plain:
            plain.sendall(hello[:cut])


def a_byte_at_a_time():
    """A handshake and a request whose records come in segments of one byte."""
    host, port = server.listeners["https"].rsplit(":", 1)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def step(action):
            while True:
                try:
                    answer = action()
                    wants = False
                except ssl.SSLWantReadError:
                    answer, wants = None, True
                for byte in outgoing.read():
                    plain.sendall(bytes([byte]))
                if not wants:
                    return answer
                part = plain.recv(65_536)
                if part:
                    incoming.write(part)
                else:
                    incoming.write_eof()

        step(client.do_handshake)
        step(lambda: client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
        text = b""
        while part := step(lambda: client.read(65_536)):
            text += part
        assert text.startswith(b"HTTP/1.1 200"), text


show(one)
tap = Tap(f"ssl of {ssl.OPENSSL_VERSION.rsplit(' ', 3)[0]}, httpx {httpx.__version__}, websockets {websockets.__version__}")
settings = {"http_tls_listen": "127.0.0.1:0", "miop_tls_listen": "127.0.0.1:0", "tls.certificate_file": SHOWN[0], "tls.key_file": SHOWN[1]}
with Server(settings) as server:
    tap.case("HTTPS over TLS 1.2, ended by close_notify", lambda: https(ssl.TLSVersion.TLSv1_2))
    tap.case("HTTPS over TLS 1.3, ended by close_notify", lambda: https(ssl.TLSVersion.TLSv1_3))
    tap.case("sends of 60 KB and their page", by_httpx)
    tap.case("a client that trusts somebody else refuses", wrong_authority)
    tap.case("wss over TLS 1.2: bind, send, receive, unbind", lambda: by_websocket(ssl.TLSVersion.TLSv1_2))
    tap.case("wss over TLS 1.3: bind, send, receive, unbind", lambda: by_websocket(ssl.TLSVersion.TLSv1_3))
    tap.case("event streams over TLS 1.2", lambda: by_event_stream(ssl.TLSVersion.TLSv1_2))
    tap.case("event streams over TLS 1.3", lambda: by_event_stream(ssl.TLSVersion.TLSv1_3))
    tap.case("MIOP over TLS 1.2: bind, heartbeat, unbind", lambda: by_miop(ssl.TLSVersion.TLSv1_2))
    tap.case("MIOP over TLS 1.3: bind, heartbeat, unbind", lambda: by_miop(ssl.TLSVersion.TLSv1_3))
    tap.case("an open connection outlives a new certificate", an_open_connection_outlives_a_new_certificate)
    tap.case("records a byte at a time", a_byte_at_a_time)
    for listener in ["https", "miop_tls"]:
        tap.case(f"plain HTTP at {listener} is ended", lambda listener=listener: something_else(listener, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        tap.case(f"handshakes cut anywhere at {listener}", lambda listener=listener: half_a_handshake(listener))
    tap.case("and the listeners still open", lambda: (https(None), by_miop(), by_websocket()) and server.is_running())
tap.end()
