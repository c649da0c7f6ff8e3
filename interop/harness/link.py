"""A link of `harness.session` over `websockets`."""

from websockets.asyncio.client import connect as ws_connect
from websockets.exceptions import ConnectionClosed

from harness.session import PATIENCE, Closed


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
