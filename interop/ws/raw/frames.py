"""WebSocket frames by hand, from RFC 6455 alone: neither a library nor a line of the server helps here."""

import base64
import hashlib
import os
import random
import socket
import struct

PATIENCE = 120
TEXT, BINARY, CONTINUE, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA


def frame(opcode, payload=b"", fin=True, rsv=0, mask=True, key=None, length=None, length_bytes=None):
    """One frame. `length`, `length_bytes`: another length than the payload's, in so many bytes (0, 2 or 8)."""
    length = len(payload) if length is None else length
    if length_bytes is None:
        length_bytes = 0 if length < 126 else 2 if length < 65_536 else 8
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    bit = 0x80 if mask else 0
    if length_bytes == 0:
        head = struct.pack("!BB", first, bit | length)
    elif length_bytes == 2:
        head = struct.pack("!BBH", first, bit | 126, length)
    else:
        head = struct.pack("!BBQ", first, bit | 127, length)
    if not mask:
        return head + payload
    key = os.urandom(4) if key is None else key
    return head + key + masked(payload, key)


def masked(payload, key):
    """RFC 6455, 5.3: octet n is XORed with octet n modulo 4 of the key. A long payload as one number, to be quick."""
    if len(payload) < 1_000:
        return bytes(byte ^ key[n % 4] for n, byte in enumerate(payload))
    repeated = (key * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(len(payload), "big")


def close_payload(code, reason=b""):
    return struct.pack("!H", code) + reason


class Gone(Exception):
    """The other side has ended the connection."""


class Raw:
    """A connection after its upgrade. `chunk`: write so many bytes at a time."""

    def __init__(self, address, path="/v1/connect", chunk=None):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.chunk, self.buffer = chunk, b""
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self.buffer:
            self._more()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        lines = head.decode().split("\r\n")
        assert " 101 " in lines[0], lines[0]
        fields = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines[1:])}
        assert fields["sec-websocket-accept"] == accept, fields
        assert "sec-websocket-extensions" not in fields

    def _more(self):
        try:
            part = self.socket.recv(1 << 20)
        except ConnectionError:
            part = b""
        if not part:
            raise Gone
        self.buffer += part

    def write(self, data):
        try:
            if self.chunk is None:
                self.socket.sendall(data)
            else:
                for n in range(0, len(data), self.chunk):
                    self.socket.sendall(data[n : n + self.chunk])
        except ConnectionError:
            pass  # What it said before it went is still to be read.

    def take(self, count):
        while len(self.buffer) < count:
            self._more()
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def frame(self):
        """The next frame as (fin, opcode, payload); every rule for a server's frame is checked."""
        first, second = self.take(2)
        assert first & 0x70 == 0, "a reserved bit is set"
        assert second & 0x80 == 0, "a server's frame is masked"
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", self.take(2))
            assert length > 125, "not the shortest form of the length"
        elif length == 127:
            (length,) = struct.unpack("!Q", self.take(8))
            assert length > 65_535, "not the shortest form of the length"
        opcode = first & 0x0F
        assert opcode in (TEXT, BINARY, CONTINUE, CLOSE, PING, PONG), opcode
        assert opcode < 8 or length < 126 and first & 0x80, "a control frame that is long or in parts"
        return bool(first & 0x80), opcode, self.take(length)

    def message(self):
        """The next message or control frame as (opcode, payload)."""
        fin, opcode, payload = self.frame()
        assert opcode != CONTINUE
        while not fin:
            fin, more, part = self.frame()
            assert more == CONTINUE
            payload += part
        return opcode, payload

    def expect(self, opcode, payload):
        came = self.message()
        assert came == (opcode, payload), f"came {came[0]} {came[1][:80]!r}, expected {opcode} {payload[:80]!r}"

    def expect_close(self, *codes):
        """The code of the goodbye, after which nothing comes but the end. None: it has no code."""
        opcode, payload = self.message()
        assert opcode == CLOSE, f"instead of a goodbye came {opcode} {payload[:200]!r}"
        code = struct.unpack("!H", payload[:2])[0] if payload else None
        payload[2:].decode()
        assert code in codes, f"the goodbye has the code {code}, not {codes}"
        self.expect_end()
        return code

    def expect_end(self):
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        try:
            came = self.message()
        except Gone:
            self.socket.close()
            return
        raise AssertionError(f"after the goodbye came {came}")


def noise(length):
    return random.randbytes(length)
