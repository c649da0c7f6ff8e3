"""One connection, frame by frame. It says whatever it is told to, also what the text forbids, and judges what it reads."""

import json
import select
import socket
import struct
import time

from . import codec

PATIENCE_S = 30
"""How long a test waits for something that must come. Only a defect takes so long."""

PROXY_V2 = b"\r\n\r\n\0\r\nQUIT\n"


class Ended(Exception):
    """The server ended the stream while a frame was expected."""


def connect(address, timeout=PATIENCE_S):
    host, port = address.rsplit(":", 1)
    sock = socket.create_connection((host.strip("[]"), int(port)), timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def proxy_v2(source, destination):
    """A header of the PROXY protocol, version 2, for TCP over IPv4; `source` and `destination` are (host, port)."""
    addresses = socket.inet_aton(source[0]) + socket.inet_aton(destination[0])
    body = addresses + struct.pack("!HH", source[1], destination[1])
    return PROXY_V2 + bytes([0x21, 0x11]) + struct.pack("!H", len(body)) + body


class Session:
    def __init__(self, address, tls=None, server_hostname=None, before=b""):
        self.sock = connect(address)
        if before:
            self.sock.sendall(before)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname=server_hostname)
        self.buffer = bytearray()
        self.ended = False
        self.reset = False
        self.ref = 0
        self.put_aside = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    # What goes out

    def send(self, data):
        self.sock.sendall(data)

    def say(self, **message):
        """One JSON frame of chat."""
        self.send(codec.chat(json.dumps(message, ensure_ascii=False).encode()))

    def ask(self, t, **message):
        """A chat operation, and the chat frame that repeats its `ref`; what else comes meanwhile is put aside."""
        self.ref += 1
        self.say(t=t, ref=self.ref, **message)
        return self.chat_until(lambda answer: answer.get("ref") == self.ref)

    def bind(self, token, device_id, **rest):
        self.send(codec.bind(token, device_id, **rest))
        return self.expect(codec.BOUND)

    def finish(self):
        """The end of this side's stream (a FIN)."""
        self.sock.shutdown(socket.SHUT_WR)

    def cut(self):
        """Ends the connection at once, as a network does that goes away: a reset, and no Unbind."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    # What comes in

    def more(self, deadline):
        """Reads what has come; False when the deadline passed first."""
        pending = getattr(self.sock, "pending", lambda: 0)()
        left = deadline - time.monotonic()
        if not pending and not select.select([self.sock], [], [], max(left, 0))[0]:
            return False
        try:
            data = self.sock.recv(65536)
        except ConnectionError:
            data, self.reset = b"", True
        if data:
            self.buffer += data
        else:
            self.ended = True
        return True

    def next(self, patience=PATIENCE_S):
        """The next frame that is not skipped, or None when the stream ended. `TimeoutError` when neither came."""
        deadline = time.monotonic() + patience
        while True:
            try:
                frame, end = codec.read_frame(self.buffer)
                del self.buffer[:end]
                if frame.kind < 0x80:
                    return frame
                continue
            except codec.Incomplete:
                if self.ended:
                    return None
            if not self.more(deadline):
                raise TimeoutError(f"nothing came within {patience} s; so far {bytes(self.buffer[:64]).hex()}")

    def expect(self, kind, patience=PATIENCE_S):
        """The next frame, which must be of this kind."""
        frame = self.next(patience)
        if frame is None:
            raise Ended(f"the stream ended where a {codec.NAMES[kind]} was expected")
        if frame.kind != kind:
            raise AssertionError(f"a {codec.NAMES[kind]} was expected, {frame} came")
        return frame

    def until(self, kind, accept=lambda frame: True, patience=PATIENCE_S):
        """The next frame of this kind that `accept` takes; others are put aside."""
        deadline = time.monotonic() + patience
        while True:
            frame = self.next(deadline - time.monotonic())
            if frame is None:
                raise Ended(f"the stream ended before the {codec.NAMES[kind]} that was expected; aside {self.put_aside}")
            if frame.kind == kind and accept(frame):
                return frame
            self.put_aside.append(frame)

    def chat_until(self, accept, patience=PATIENCE_S):
        frame = self.until(codec.CHAT, lambda f: accept(json.loads(f.payload)), patience)
        return json.loads(frame.payload)

    def quiet(self):
        """Everything that the server had to say before it answered a heartbeat: the list of frames, the answer excluded."""
        self.send(codec.heartbeat())
        out = []
        while True:
            frame = self.next()
            if frame is None:
                raise Ended(f"the stream ended where a heartbeat's answer was expected, after {out}")
            if frame.kind == codec.HEARTBEAT and frame.get("interval_s") is None:
                return out
            out.append(frame)

    def until_end(self, patience=PATIENCE_S):
        """All frames up to the end of the stream, which must come; bytes that are no whole frame stay in `buffer`."""
        out = []
        deadline = time.monotonic() + patience
        while (frame := self.next(deadline - time.monotonic())) is not None:
            out.append(frame)
        return out
