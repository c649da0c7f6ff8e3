"""Messages that grow: begun and appended to over HTTP with `urllib`, read with `websockets`, by the rules of docs/websocket.md."""

import asyncio
import os
import sys

import websockets

from harness.api import api, call
from harness.link import connect
from harness.session import bind
from harness.tap import Tap

GROUP = "streams-g"
ADA, BEN = "streams-ada", "streams-ben"
WORDS = [f"wörd-{n} 😀 " for n in range(60)]


class Reader:
    """What a client has of the messages that grow. Texts are bytes, since offsets count bytes."""

    def __init__(self):
        self.texts, self.marks, self.chunks = {}, {}, 0

    def apply(self, frame):
        if frame["t"] in ("messages", "history"):
            for entry in frame["entries"]:
                if entry["kind"] in ("message", "edit"):
                    seq = entry.get("target", entry["seq"])
                    self.texts[seq] = entry["body"]["text"].encode()
                    self.marks[seq] = entry.get("stream")
        elif frame["t"] == "stream":
            self.chunks += 1
            have = self.texts[frame["seq"]]
            known = len(have) - frame["offset"]
            assert known >= 0, f"bytes {len(have)} to {frame['offset']} are missing"
            self.texts[frame["seq"]] = have + frame["text"].encode()[known:]

    async def until(self, session, holds):
        while not holds():
            self.apply(await session.next())


async def http(method, path, body=None):
    return await asyncio.to_thread(api, method, path, body)


async def append(seq, before, words):
    """Appends words; answers the text."""
    text = before
    for word in words:
        answer = await http("POST", f"/v1/streams/{GROUP}/{seq}", {"offset": len(text.encode()), "text": word})
        text += word
        assert answer == {"offset": len(text.encode())}, answer
    return text


async def over_http(url):
    ben = await bind(connect, url, BEN)
    cursor, reader = ben.cursor, Reader()
    body = {"model": "m-1", "text": "", "sources": [1, 2.50]}
    begun = await http("POST", "/v1/streams", {"conversation": GROUP, "from": ADA, "client_msg_id": "begin", "body": body})
    seq = begun["seq"]
    half = await append(seq, "", WORDS[:30])
    await reader.until(ben, lambda: reader.texts.get(seq) == half.encode())
    assert reader.marks[seq] == "open" and reader.chunks > 0
    # A device that comes in the middle, from where it was before the message.
    tablet = await bind(connect, url, BEN, device="tablet", cursor=cursor)
    late = Reader()
    await late.until(tablet, lambda: seq in late.texts)
    whole = await append(seq, half, WORDS[30:])
    for session, each in ((ben, reader), (tablet, late)):
        await each.until(session, lambda each=each: each.texts[seq] == whole.encode())
    status, _, refusal = await asyncio.to_thread(call, "POST", f"/v1/streams/{GROUP}/{seq}", {"offset": 10**6, "text": "x"})
    assert (status, refusal["code"]) == (409, "conflict") and str(len(whole.encode())) in refusal["detail"], refusal
    ended = await http("POST", f"/v1/streams/{GROUP}/{seq}/end", {})
    assert (ended["seq"], ended["version"]) == (seq + 1, 2), ended
    for session, each in ((ben, reader), (tablet, late)):
        await each.until(session, lambda each=each: each.marks[seq] is None)
        assert each.texts[seq] == whole.encode()
    stored = await http("GET", f"/v1/conversations/{GROUP}/messages/{seq}")
    assert stored["body"] == {**body, "text": whole} and list(stored["body"]) == list(body), stored
    again = await http("POST", f"/v1/streams/{GROUP}/{seq}/end", {})
    assert again["duplicate"] and again["seq"] == ended["seq"], again
    await ben.link.socket.close()
    await tablet.link.socket.close()


async def over_websocket(url):
    ada, ben = await bind(connect, url, ADA), await bind(connect, url, BEN)
    reader, refs = Reader(), iter(range(1_000, 2_000))

    async def ask(t, **fields):
        """The answer; a begin or an end is answered in `sent`."""
        ref = next(refs)
        await ada.tell(t, ref=ref, **fields)
        frame = await ada.until(lambda f: f.get("ref") == ref or f["t"] == "sent" and f["results"][0].get("ref") == ref)
        return frame["results"][0] if frame["t"] == "sent" else frame

    begun = await ask("stream_begin", conversation=GROUP, body={"text": "so "})
    chunk = {"conversation": GROUP, "seq": begun["seq"], "offset": 3, "text": "fär"}
    for _ in range(2):
        answer = await ask("stream_append", **chunk)
        assert (answer["t"], answer["offset"]) == ("appended", 7), answer
    await reader.until(ben, lambda: reader.texts.get(begun["seq"]) == "so fär".encode())
    ended = await ask("stream_end", conversation=GROUP, seq=begun["seq"], body={"text": "done"})
    assert ended["seq"] == begun["seq"] + 1, ended
    await reader.until(ben, lambda: reader.marks[begun["seq"]] is None)
    assert reader.texts[begun["seq"]] == b"done"
    late = await ask("stream_append", **chunk)
    assert late["code"] == "stream_ended", late
    # The message of a session that is gone is ended as it is.
    begun = await ask("stream_begin", conversation=GROUP, body={"text": "half"})
    ada.link.socket.transport.abort()
    await reader.until(ben, lambda: reader.marks.get(begun["seq"]) == "interrupted")
    assert reader.texts[begun["seq"]] == b"half"
    await ben.link.socket.close()


async def suite(tap):
    url = os.environ["TIDINGS_WS"]
    api("PUT", "/v1/users", {"users": [{"id": user} for user in (ADA, BEN)]})
    api("POST", "/v1/conversations", {"id": GROUP, "kind": "group", "owner": ADA, "members": [BEN]})
    await tap.async_case("begun, appended and ended over HTTP, read from the start and from the middle", lambda: over_http(url))
    await tap.async_case("begun, appended and ended by a session, and interrupted with it", lambda: over_websocket(url))


tap = Tap(f"websockets {websockets.__version__}, streams, Python {sys.version.split()[0]}")
asyncio.run(suite(tap))
tap.end()
