"""Our own clients, judged by strangers: the client of the tests talks to a server on `websockets`, and the frames of the load lab
are read on their way to the server, by the rules of RFC 6455 alone."""

import asyncio
import json
import os
import struct

import websockets
from websockets.asyncio.server import serve

from harness.tap import Tap

PROGRAM = os.environ["TIDINGS_BIN"]
LENGTHS = [*range(301), *range(65_500, 65_601), 131_072, 1_000_000]
# Birthdays: of 10,000 random keys of 32 bits one pair in eighty runs is alike. A client that repeats keys has few different ones.
DIFFERENT_KEYS_LEAST = 0.99
BENCH_SECONDS_MAX = 300


class Tapped:
    """Passes connections on, and keeps what clients wrote on those that became WebSockets."""

    def __init__(self, target):
        host, _, port = target.partition(":")
        self.target, self.streams = (host, int(port)), []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.address = "127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def _pass(self, reader, writer):
        far_reader, far_writer = await asyncio.open_connection(*self.target)
        kept = bytearray()
        self.streams.append(kept)

        async def pump(source, sink, keep):
            try:
                while data := await source.read(1 << 16):
                    if keep is not None:
                        keep += data
                    sink.write(data)
                    await sink.drain()
                sink.write_eof()
            except (ConnectionError, OSError):
                pass

        await asyncio.gather(pump(reader, far_writer, kept), pump(far_reader, writer, None))
        writer.close()
        far_writer.close()

    def frames(self):
        """Every whole frame of every client: (key, opcode, payload); raises when one breaks a rule."""
        found = []
        for kept in self.streams:
            head, _, rest = bytes(kept).partition(b"\r\n\r\n")
            if b"upgrade: websocket" not in head.lower():
                continue
            while len(rest) >= 2:
                first, second = rest[0], rest[1]
                assert first & 0x70 == 0 and second & 0x80, "a reserved bit is set, or no mask"
                length, start = second & 0x7F, 2
                if length == 126:
                    (length,), start = struct.unpack("!H", rest[2:4]), 4
                    assert length > 125, "not the shortest form of the length"
                elif length == 127:
                    (length,), start = struct.unpack("!Q", rest[2:10]), 10
                    assert length > 65_535, "not the shortest form of the length"
                key, payload = rest[start : start + 4], rest[start + 4 : start + 4 + length]
                if len(payload) < length:
                    break
                found.append((key, first & 0x0F, bytes(byte ^ key[n % 4] for n, byte in enumerate(payload))))
                rest = rest[start + 4 + length :]
        return found


async def run(*arguments):
    process = await asyncio.create_subprocess_exec(
        PROGRAM, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        text, _ = await asyncio.wait_for(process.communicate(), BENCH_SECONDS_MAX)
    except asyncio.TimeoutError:
        process.kill()
        raise
    return process.returncode, text.decode(errors="replace")


def check_keys(frames):
    keys = {key for key, *_ in frames}
    assert len(keys) >= DIFFERENT_KEYS_LEAST * len(frames), f"{len(keys)} keys in {len(frames)} frames"


async def probe():
    heard = []

    async def say_back(socket):
        # One at a time, and what a server may do besides: pings between, texts in parts.
        async for text in socket:
            heard.append(len(text))
            answer = json.dumps({"t": "typing", "conversation": text, "user": str(len(text))})
            if len(text) % 3 == 0:
                await (await socket.ping(b"x" * (len(text) % 126)))
            if len(text) % 2 == 0:
                await socket.send([answer[n : n + 1_000] for n in range(0, len(answer), 1_000)])
            else:
                await socket.send(answer)

    async with serve(say_back, "127.0.0.1", 0, max_size=None) as server:
        port = server.sockets[0].getsockname()[1]
        async with Tapped(f"127.0.0.1:{port}") as tapped:
            status, text = await run("bench", "ws-probe", "--address", tapped.address)
            assert status == 0, text
            assert heard == LENGTHS and text.strip() == str(len(LENGTHS)), text
            frames = tapped.frames()
    texts = [payload for _, opcode, payload in frames if opcode == 1]
    assert [len(text) for text in texts] == LENGTHS
    assert sum(opcode == 0xA for _, opcode, _ in frames) == sum(length % 3 == 0 for length in LENGTHS)
    check_keys(frames)


async def lab(*arguments):
    target = os.environ["TIDINGS_URL"].removeprefix("http://")
    async with Tapped(target) as tapped:
        status, text = await run("bench", *arguments, "--patience", "100s", "--url", f"http://{tapped.address}")
        assert status in (0, 3), f"ended with {status}:\n{text}"
        frames = tapped.frames()
    kinds = {json.loads(payload)["t"] for _, opcode, payload in frames if opcode == 1}
    check_keys(frames)
    return kinds, len(frames)


async def main():
    tap = Tap(f"websockets {websockets.__version__} as the server")
    await tap.async_case("the client of the tests: every length, pings between, answers in parts", probe)

    async def senders():
        kinds, count = await lab("direct", "--via", "ws", "--pairs", "5", "--duration", "2s", "--rate", "200")
        assert {"bind", "send"} <= kinds and count > 100, (kinds, count)

    await tap.async_case("the lab's senders and receivers: frames that Python can read", senders)

    async def devices():
        kinds, count = await lab("connect", "--via", "ws", "--devices", "50", "--hold", "2s", "--heartbeat", "1s", "--push")
        assert {"bind", "ack"} <= kinds and count >= 100, (kinds, count)

    await tap.async_case("the lab's devices: frames that Python can read", devices)
    tap.end()


asyncio.run(main())
