"""What a client of the WebSocket listener does, over whichever library: a `link` with the coroutines

    send(text)          one text message
    receive()           the next text message; raises Closed(code, reason) at the end
    ping(payload)       returns when the pong of this payload is there
    cut()               ends the TCP connection without a goodbye
    close(code, reason) says goodbye, waits for the other side's, and returns the code of that

and `connect`, a coroutine function that makes such a link from an address. `run` is the suite of both Python libraries.
"""

import asyncio
import json
import os
import random
import string
import sys

from harness.api import api, token
from harness.tap import Tap

# Nothing here takes seconds, but the machine may be busy.
PATIENCE = 120
BODY_BYTES_MAX = 64 * 1024
WINDOW = 64


class Closed(Exception):
    def __init__(self, code, reason=""):
        super().__init__(f"closed with {code} {reason}")
        self.code, self.reason = code, reason


class Session:
    """A bound session: its answers by `ref`, the entries that came, the newest cursor."""

    def __init__(self, link):
        self.link = link
        self.cursor = None
        self.entries = []
        self.refs = 0

    async def next(self):
        frame = json.loads(await asyncio.wait_for(self.link.receive(), PATIENCE))
        if frame["t"] == "messages":
            self.cursor = frame["cursor"]
            self.entries += frame["entries"]
        return frame

    async def tell(self, t, **fields):
        await self.link.send(json.dumps({"t": t, **fields}, ensure_ascii=False))

    async def until(self, wanted):
        while True:
            frame = await self.next()
            if wanted(frame):
                return frame

    async def ask(self, t, **fields):
        """The frame that answers; a refusal too."""
        self.refs += 1
        ref = self.refs
        await self.tell(t, ref=ref, **fields)
        if t in ("send", "edit", "recall", "stream_begin", "stream_end"):
            frame = await self.until(lambda f: f.get("ref") == ref or f["t"] == "sent" and any(r.get("ref") == ref for r in f["results"]))
            return next(r for r in frame["results"] if r.get("ref") == ref) if frame["t"] == "sent" else frame
        return await self.until(lambda f: f.get("ref") == ref)

    async def send(self, to, body, client_msg_id=None):
        """The receipt; who is told to wait waits."""
        client_msg_id = client_msg_id or "".join(random.choices(string.ascii_letters, k=16))
        while True:
            answer = await self.ask("send", to=to, client_msg_id=client_msg_id, body=body)
            if answer.get("t") != "error" or not answer["retry"]:
                return answer
            await asyncio.sleep(answer.get("retry_after_ms", 100) / 1000)

    async def have(self, count):
        while len(self.entries) < count:
            await self.next()
        assert len(self.entries) == count, f"{len(self.entries)} entries came, {count} were sent"
        return self.entries


async def bind(connect, url, user, device="phone", **fields):
    session = Session(await connect(url))
    await session.tell("bind", token=token(user), device_id=device, **fields)
    bound = await session.next()
    assert bound["t"] == "bound", bound
    session.cursor, session.bound = bound["cursor"], bound
    return session


def letters(length):
    return "".join(random.choices(string.ascii_letters + string.digits, k=length))


async def send_all(session, frames):
    """Sends frames, a window at a time; those that are refused for the moment again. `frames`: client_msg_id to text."""
    waiting = dict(frames)
    while waiting:
        window = dict(list(waiting.items())[:WINDOW])
        refs = {json.loads(text)["ref"]: name for name, text in window.items()}
        for text in window.values():
            await session.link.send(text)
        wait_ms = 0
        while refs:
            frame = await session.next()
            if frame["t"] == "sent":
                for result in frame["results"]:
                    waiting.pop(refs.pop(result["ref"]))
            elif frame["t"] == "error":
                assert frame["retry"], frame
                refs.pop(frame["ref"])
                wait_ms = max(wait_ms, frame.get("retry_after_ms", 100))
        await asyncio.sleep(wait_ms / 1000)


async def check_lengths(ada, ben, to):
    """Bodies of 0 to 300 characters, and frames of every length around 65,535 and 65,536."""
    texts, frames = {}, {}

    def put(number, text):
        texts[f"l{number}"] = text
        frames[f"l{number}"] = json.dumps({"t": "send", "ref": 1_000_000 + number, "to": to, "client_msg_id": f"l{number}", "body": text})

    for length in range(301):
        put(length, letters(length))
    for length in range(65_525, 65_545):
        put(length, "")
        put(length, letters(length - len(frames[f"l{length}"])))
        assert len(frames[f"l{length}"]) == length
    before = len(ben.entries)
    await send_all(ada, frames)
    await ben.have(before + len(frames))
    for entry in ben.entries[before:]:
        assert entry["body"] == texts.pop(entry["client_msg_id"]), f"{entry['client_msg_id']} came changed"
    assert not texts


async def check_resume(connect, url, ada, ada_id, ben_id):
    ben = await bind(connect, url, ben_id, device="tablet")
    await ada.send(ben_id, {"before": 1})
    await ben.have(1)
    cursor = ben.cursor
    await ben.link.cut()
    sent = [await ada.send(ben_id, {"missed": n}) for n in range(3)]
    again = await bind(connect, url, ben_id, device="tablet", cursor=cursor)
    assert again.bound["resume"] == {"complete": True}, again.bound
    missed = await again.have(3)
    assert [e["body"] for e in missed] == [{"missed": n} for n in range(3)], missed
    assert [e["seq"] for e in missed] == [receipt["seq"] for receipt in sent]
    third = await bind(connect, url, ben_id, device="tablet", cursor=again.cursor)
    pong = await third.ask("ping")
    assert pong["t"] == "pong" and not third.entries, "what was handed over came again"


async def check_body_limit(ada, ben, to):
    whole = letters(BODY_BYTES_MAX - 2)
    before = len(ben.entries)
    receipt = await ada.send(to, whole)
    assert receipt.get("seq"), receipt
    assert (await ben.have(before + 1))[-1]["body"] == whole
    refused = await ada.send(to, whole + "x")
    assert refused["code"] == "limit_exceeded" and "65536" in refused["message"], refused
    assert (await ada.ask("ping"))["t"] == "pong"


async def check_conversations(ada, name):
    ids, after = [], {}
    while True:
        page = await ada.ask("conversations", limit=2, **after)
        assert page["t"] == "conversations" and len(page["conversations"]) <= 2, page
        ids += [conversation["id"] for conversation in page["conversations"]]
        if "next" not in page:
            break
        after = {"after": page["next"]}
    over_http = api("GET", f"/v1/users/{name}-ada/conversations")
    assert ids == [c["id"] for c in over_http["conversations"]] and len(ids) == 4, (ids, over_http)


async def check_bad_cursor(connect, url, user):
    session = Session(await connect(url))
    await session.tell("bind", token=token(user), device_id="watch", cursor="of.another.server")
    refusal = await session.next()
    assert (refusal["code"], refusal["retry"]) == ("cursor_invalid", False), refusal
    try:
        await session.next()
    except Closed as closed:
        assert (closed.code, closed.reason) == (4014, "cursor_invalid"), closed
    else:
        raise AssertionError("the session goes on")


async def check_close(connect, url, user):
    for code in (1000, 3999, 4999):
        session = await bind(connect, url, user, device="watch")
        assert await session.link.close(code, "bye") == code


def prepare(name):
    """Users `NAME-ada`, `NAME-ben`, `NAME-cy`, and two groups of all."""
    ada, ben, cy = (f"{name}-{who}" for who in ("ada", "ben", "cy"))
    api("PUT", "/v1/users", {"users": [{"id": user} for user in (ada, ben, cy)]})
    for group in ("g1", "g2"):
        api("POST", "/v1/conversations", {"id": f"{name}-{group}", "kind": "group", "owner": ada, "members": [ben, cy]})
    return ada, ben, cy


async def suite(tap, name, connect, extra=None):
    url = os.environ["TIDINGS_WS"]
    ada_id, ben_id, cy_id = prepare(name)
    ada, ben = await bind(connect, url, ada_id), await bind(connect, url, ben_id)

    async def both_have_it():
        receipt = await ada.send(ben_id, {"text": "grüße, 你好, 😀 \u0000 \\ \""})
        (hers,), (his,) = await ada.have(1), await ben.have(1)
        assert hers == his and his["seq"] == receipt["seq"] and his["from"] == ada_id, (hers, his, receipt)
        assert his["body"] == {"text": "grüße, 你好, 😀 \u0000 \\ \""}, his

    await tap.async_case("a message is acknowledged and comes to both, unchanged", both_have_it)
    await tap.async_case("every length from 0 to 300 and around 65,535 and 65,536", lambda: check_lengths(ada, ben, ben_id))
    await tap.async_case("a body of 64 KiB is taken, one byte more is refused", lambda: check_body_limit(ada, ben, ben_id))

    async def pings():
        for payload in (b"", b"x", bytes(range(125))):
            await asyncio.wait_for(ada.link.ping(payload), PATIENCE)
        assert (await ada.ask("ping"))["t"] == "pong"

    # Pongs are seen while something reads.
    await tap.async_case("a ping is answered with its payload", pings)
    for title, check in (extra or {}).items():
        await tap.async_case(title, lambda check=check: check(ada, ben, ben_id))
    await ada.send(cy_id, "so that there are two direct ones")
    await tap.async_case("conversations come page by page, as over HTTP", lambda: check_conversations(ada, name))
    await tap.async_case("after a cut what was missed comes, once", lambda: check_resume(connect, url, ada, ada_id, ben_id))
    await tap.async_case("a cursor of another server is refused by a code of its own", lambda: check_bad_cursor(connect, url, cy_id))
    await tap.async_case("a goodbye is answered with its code", lambda: check_close(connect, url, cy_id))
    await ada.link.close(1000, "")
    await ben.link.close(1000, "")


def run(client, name, connect, extra=None):
    tap = Tap(f"{client}, Python {sys.version.split()[0]}")
    asyncio.run(suite(tap, name, connect, extra))
    tap.end()
