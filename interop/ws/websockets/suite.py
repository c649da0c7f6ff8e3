"""The WebSocket listener with `websockets`."""

import json

import websockets

from harness.link import connect
from harness.session import run


async def in_parts(ada, ben, to):
    """One message in parts, each a frame of its own."""
    text = json.dumps({"t": "send", "ref": 77, "to": to, "body": "in parts: 😀"}, ensure_ascii=False)
    before = len(ben.entries)
    await ada.link.socket.send([text[n : n + 7] for n in range(0, len(text), 7)])
    assert (await ben.have(before + 1))[-1]["body"] == "in parts: 😀"


run(f"websockets {websockets.__version__}", "pyws", connect, {"a message in parts is one": in_parts})
