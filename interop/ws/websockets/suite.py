"""The WebSocket listener with `websockets`."""

import json
import os

import websockets

from harness.api import api
from harness.link import connect
from harness.session import bind, run


async def in_parts(ada, ben, to):
    """One message in parts, each a frame of its own."""
    text = json.dumps({"t": "send", "ref": 77, "to": to, "body": "in parts: 😀"}, ensure_ascii=False)
    before = len(ben.entries)
    await ada.link.socket.send([text[n : n + 7] for n in range(0, len(text), 7)])
    assert (await ben.have(before + 1))[-1]["body"] == "in parts: 😀"


def completed(entries):
    """What docs/websocket.md, Compact entries, says of a reader."""
    before = {}
    for entry in entries:
        for name in ("conversation", "kind", "at", "type"):
            entry.setdefault(name, before.get(name))
        entry.setdefault("seq", before.get("seq", 0) + 1)
        before = entry
    return entries


async def compact_entries(ada, ben, to):
    """Of a batch a session of compact entries has what another one has, and fewer fields came."""
    watcher = await bind(connect, os.environ["TIDINGS_WS"], to, device="watcher", compact=True)
    before, count = len(ben.entries), 200
    messages = [{"from": ada.bound["user"], "to": to, "body": n, **({"type": "note"} if n % 9 == 0 else {})} for n in range(count)]
    results = api("POST", "/v1/messages/batch", {"messages": messages})["results"]
    assert all("seq" in result for result in results), results
    whole, compact = (await ben.have(before + count))[before:], await watcher.have(count)
    assert any("conversation" not in entry for entry in compact), "no entry leaves anything out"
    assert completed(compact) == whole
    await watcher.link.close(1000, "")


run(f"websockets {websockets.__version__}", "pyws", connect, {"a message in parts is one": in_parts, "compact entries say what whole ones say": compact_entries})
