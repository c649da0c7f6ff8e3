"""The WebSocket listener byte by byte: frames by hand from RFC 6455, against the server and against an echo on its framing."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import echo_cases  # noqa: E402
from frames import BINARY, CLOSE, CONTINUE, PATIENCE, PING, PONG, TEXT, Raw, close_payload, frame, noise  # noqa: E402
from harness.api import token  # noqa: E402
from harness.session import prepare  # noqa: E402
from harness.tap import Tap  # noqa: E402

tap = Tap(f"sockets of Python {sys.version.split()[0]}")
ada, ben, cy = prepare("raw")
server = os.environ["TIDINGS_URL"].removeprefix("http://")


def tell(raw, t, **fields):
    raw.write(frame(TEXT, json.dumps({"t": t, **fields}).encode()))


def hear(raw, t):
    """The next frame of that kind; entries may come at any time."""
    while True:
        opcode, payload = raw.message()
        assert opcode == TEXT, (opcode, payload)
        answer = json.loads(payload)
        if answer["t"] == t:
            return answer
        assert answer["t"] == "messages", answer


def bound(user=ada, device="raw"):
    raw = Raw(server)
    tell(raw, "bind", token=token(user), device_id=device)
    hear(raw, "bound")
    return raw


def ends(data, close, code="malformed"):
    """The data end a session, and a connection without one: an error frame that says why, and the goodbye."""
    for raw in (bound(), Raw(server)):
        raw.write(data)
        refusal = hear(raw, "error")
        assert refusal["code"] == code and refusal["retry"] is False, refusal
        raw.expect_close(close)


def says_goodbye(payload, *codes):
    raw = bound()
    raw.write(frame(CLOSE, payload) + frame(PING, b"late"))
    raw.expect_close(*codes)


PONGED = b'{"t":"pong","ref":7}'
ping = b'{"t":"ping","ref":7}'


def handshake(**changes):
    """The status line and fields of the answer to a handshake with other fields; None takes one out."""
    fields = {
        "Host": server, "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    first = changes.pop("first", "GET /v1/connect HTTP/1.1")
    fields.update({name.replace("_", "-"): value for name, value in changes.items()})
    host, port = server.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as stream:
        lines = [first] + [f"{name}: {value}" for name, value in fields.items() if value is not None]
        stream.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        data = b""
        while b"\r\n\r\n" not in data:
            part = stream.recv(4096)
            assert part, f"the connection ended after {data!r}"
            data += part
    head = data.split(b"\r\n\r\n")[0].decode().split("\r\n")
    answered = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in head[1:])}
    return int(head[0].split()[1]), answered


def handshakes_that_are_taken():
    for changes in (
        {}, {"Connection": "keep-alive, Upgrade"}, {"Upgrade": "WebSocket"}, {"Connection": "upgrade"}, {"Origin": "https://example.org"},
        {"Sec_WebSocket_Extensions": "permessage-deflate; client_max_window_bits"}, {"Sec_WebSocket_Protocol": "chat, superchat"},
        {"first": "GET /v1/connect?x=1 HTTP/1.1"},
    ):
        status, fields = handshake(**changes)
        # The answer of RFC 6455, 1.3, to its own key.
        assert (status, fields.get("sec-websocket-accept")) == (101, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), (changes, status, fields)
        assert fields["upgrade"].lower() == "websocket" and fields["connection"].lower() == "upgrade", fields
        # What was offered is declined by not being named.
        assert "sec-websocket-extensions" not in fields and "sec-websocket-protocol" not in fields, fields


def handshakes_that_are_not():
    for changes, expected in (
        ({"Sec_WebSocket_Version": "8"}, 400), ({"Sec_WebSocket_Version": None}, 400), ({"Sec_WebSocket_Key": None}, 400),
        ({"Sec_WebSocket_Key": "short"}, 400), ({"Upgrade": None}, 400), ({"Upgrade": "h2c"}, 400), ({"Connection": "close"}, 400),
        ({"first": "POST /v1/connect HTTP/1.1", "Content_Length": "0"}, 405), ({"Host": None}, 400),
        ({"first": "GET /v1/connect HTTP/1.0"}, 400),
    ):
        status, fields = handshake(**changes)
        assert status == expected, (changes, status, fields)
        # Without a Host it is no request of HTTP/1.1, whatever it asks for.
        assert "Host" in changes or fields.get("sec-websocket-version") == "13", (changes, fields)


def vectors():
    raw = bound()
    raw.write(bytes([0x89, 0x85, 0x37, 0xFA, 0x21, 0x3D, 0x7F, 0x9F, 0x4D, 0x51, 0x58]))
    raw.expect(PONG, b"Hello")


def every_length():
    raw, other = bound(), bound(ben)
    for length in range(126):
        payload = noise(length)
        raw.write(frame(PING, payload))
        raw.expect(PONG, payload)
    for length in [*range(301), *range(65_400, 65_420)]:
        body = "x" * length
        data = json.dumps({"t": "send", "ref": 1, "to": ben, "body": body}).encode()
        while True:
            raw.write(frame(TEXT, data))
            answer = json.loads(next(p for _, p in iter(raw.message, None) if json.loads(p)["t"] in ("sent", "error")))
            if answer["t"] == "sent":
                break
            assert answer["retry"], answer
        came = []
        while not came:
            # Lines of the list come, too.
            came = json.loads(other.message()[1]).get("entries", [])
        assert [entry["body"] for entry in came] == [body], length


def parts():
    for chunk in (None, 1):
        raw = bound()
        raw.chunk = chunk
        raw.write(frame(TEXT, ping[:4], fin=False) + frame(PING, b"between") + frame(PONG) + frame(CONTINUE, b"", fin=False) + frame(CONTINUE, ping[4:]))
        raw.expect(PONG, b"between")
        raw.expect(TEXT, PONGED)
        # What is no operation is named in the answer: no character was cut.
        text = '{"ref":7,"t":"κόσμε😀"}'.encode()
        for cut in range(len(text)):
            raw.write(frame(TEXT, text[:cut], fin=False) + frame(CONTINUE, text[cut:]))
            refusal = hear(raw, "error")
            assert refusal["ref"] == 7 and "κόσμε😀" in refusal["message"], refusal


tap.case("listener: handshakes that RFC 6455 allows", handshakes_that_are_taken)
tap.case("listener: handshakes that it does not; the answer says which version is understood", handshakes_that_are_not)
tap.case("listener: the masked Hello of RFC 6455", vectors)
tap.case("listener: every length from 0 to 300 and around 65,536, each with a random key", every_length)
tap.case("listener: messages in parts with control frames between, cut at every byte", parts)
tap.case("listener: a goodbye is answered with its code", lambda: [says_goodbye(close_payload(code, b"bye"), code) for code in (1000, 1001, 1011, 1014, 3000, 4999)])
tap.case("listener: a goodbye without a code is answered by one without", lambda: says_goodbye(b"", None))
tap.case("listener: codes that must not be sent are not repeated", lambda: [says_goodbye(close_payload(code), 1002) for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65_535)])
tap.case("listener: half a code", lambda: says_goodbye(b"\x03", 1002))
tap.case("listener: a reason that is not UTF-8", lambda: says_goodbye(close_payload(1000, b"\xff"), 1007))
tap.case("listener: reserved bits", lambda: [ends(frame(TEXT, ping, rsv=rsv), 1002) for rsv in (1, 2, 4, 7)])
tap.case("listener: reserved opcodes", lambda: [ends(frame(opcode, b""), 1002) for opcode in (3, 7, 11, 15)])
tap.case("listener: frames without a mask", lambda: [ends(frame(opcode, b"", mask=False), 1002) for opcode in (TEXT, PING, CLOSE)])
tap.case("listener: control frames that are long, or in parts", lambda: [ends(data, 1002) for data in (frame(PING, b"x" * 126), frame(PING, b"x", fin=False), frame(CLOSE, close_payload(1000, b"*" * 124)))])
tap.case("listener: parts of nothing, and a message within a message", lambda: [ends(data, 1002) for data in (frame(CONTINUE, ping), frame(TEXT, b"{", fin=False) + frame(TEXT, ping))])
tap.case("listener: binary messages", lambda: [ends(data, 1003) for data in (frame(BINARY, ping), frame(BINARY, ping, fin=False))])
tap.case("listener: text that is not UTF-8, also in a field that nobody reads", lambda: [
    ends(frame(TEXT, text), 1007)
    for text in (b'{"t":"ping","x":"\xff"}', b'{"t":"ping","\xed\xa0\x80":1}', b'{"t":"\xc0\xaf"}', b'{"t":"send","body":["\xf4\x90\x80\x80"]}', b"\xff")
])
tap.case("listener: wrong UTF-8 is refused with the part that it stands in", lambda: ends(frame(TEXT, b'{"t":"ping","x":"\xe2\x82', fin=False) + frame(CONTINUE, b"x", fin=False), 1007))
tap.case("listener: a message over the limit, by its header and by its parts", lambda: [
    ends(frame(TEXT, b"", length=length, length_bytes=8), 4005, "limit_exceeded") for length in (192 * 1024 + 1, 1 << 40)
] and (lambda raw: (raw.write(frame(TEXT, b" " * 100_000, fin=False) + frame(CONTINUE, b" " * 100_000)), hear(raw, "error"), raw.expect_close(4005)))(bound()))


def refusals_name_the_request():
    raw = bound()
    for text, code, ref, words in [
        (b'{"t":"send","ref":7,"conversation":5,"body":1}', "invalid_field", 7, "conversation"),
        (b'{"ref":7,"t":"send","to":"x","body":{"a":}}', "malformed", 7, ""),
        (b'{"t":"send","body":{"a":},"ref":7}', "malformed", None, ""),
        (b'{"t":"send","ref":7,"to":"x"}', "invalid_field", 7, "body"),
        (b'{"t":"dance","ref":7}', "malformed", 7, "t"),
        (b"[]", "malformed", None, ""),
    ]:
        raw.write(frame(TEXT, text))
        refusal = hear(raw, "error")
        assert (refusal["code"], refusal.get("ref")) == (code, ref) and refusal["message"].startswith(words), refusal
    raw.write(frame(TEXT, ping))
    raw.expect(TEXT, PONGED)


tap.case("listener: a refusal names the request and the field, and the session goes on", refusals_name_the_request)

echo = subprocess.Popen([os.environ["TIDINGS_BIN"], "bench", "ws-echo"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
try:
    address = echo.stdout.readline().strip()
    echo_cases.run(tap, lambda chunk: Raw(address, path="/", chunk=chunk))
finally:
    echo.stdin.close()
    echo.wait(60)
tap.end()
