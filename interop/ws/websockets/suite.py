"""The WebSocket door with `websockets`."""

import json

import websockets
from websockets.asyncio.client import connect as ws_connect
from websockets.exceptions import ConnectionClosed

from harness.session import PATIENCE, Closed, run


class Link:
    def __init__(self, socket):
        self.socket = socket

    async def send(self, text):
        await self.socket.send(text)

    async def receive(self):
        try:
            return await self.socket.recv()
        except ConnectionClosed:
            raise Closed(self.socket.close_code, self.socket.close_reason) from None

    async def ping(self, payload):
        await (await self.socket.ping(payload))

    async def cut(self):
        self.socket.transport.abort()
        await self.socket.wait_closed()

    async def close(self, code, reason):
        await self.socket.close(code, reason)
        return self.socket.close_code


async def connect(url):
    # It offers to compress, as it does unless told otherwise; the server declines.
    timeouts = {"open_timeout": PATIENCE, "close_timeout": PATIENCE, "ping_interval": None}
    return Link(await ws_connect(url, max_size=None, **timeouts))


async def in_parts(ada, ben, to):
    """One message in parts, each a frame of its own."""
    text = json.dumps({"t": "send", "ref": 77, "to": to, "body": "in parts: 😀"}, ensure_ascii=False)
    before = len(ben.entries)
    await ada.link.socket.send([text[n : n + 7] for n in range(0, len(text), 7)])
    assert (await ben.have(before + 1))[-1]["body"] == "in parts: 😀"


run(f"websockets {websockets.__version__}", "pyws", connect, {"a message in parts is one": in_parts})
