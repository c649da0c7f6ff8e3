"""The WebSocket listener with aiohttp."""

import aiohttp

from harness.session import PATIENCE, Closed, run


class Link:
    def __init__(self, session, socket):
        self.session, self.socket = session, socket
        self.pongs, self.texts = [], []

    async def send(self, text):
        await self.socket.send_str(text)

    async def _next(self):
        message = await self.socket.receive()
        if message.type == aiohttp.WSMsgType.PONG:
            self.pongs.append(bytes(message.data))
        elif message.type == aiohttp.WSMsgType.TEXT:
            self.texts.append(message.data)
        elif message.type == aiohttp.WSMsgType.CLOSE:
            code, reason = message.data, message.extra
            await self.socket.close()
            await self.session.close()
            raise Closed(code, reason)
        else:
            await self.session.close()
            raise Closed(self.socket.close_code, f"{message.type} {message.data}")

    async def receive(self):
        while not self.texts:
            await self._next()
        return self.texts.pop(0)

    async def ping(self, payload):
        await self.socket.ping(payload)
        while payload not in self.pongs:
            await self._next()
        self.pongs.remove(payload)

    async def cut(self):
        self.socket.get_extra_info("socket").shutdown(2)
        await self.session.close()

    async def close(self, code, reason):
        await self.socket.close(code=code, message=reason.encode())
        await self.session.close()
        return self.socket.close_code


async def connect(url):
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
    # autoping off: its pongs are otherwise kept from us.
    timeout = aiohttp.ClientWSTimeout(ws_close=PATIENCE)
    socket = await session.ws_connect(url, autoping=False, autoclose=False, compress=15, max_msg_size=0, timeout=timeout)
    return Link(session, socket)


run(f"aiohttp {aiohttp.__version__}", "aio", connect)
