"""The list of conversations, receipts and preferences, as an app sees them with `websockets`."""

import asyncio
import os
import sys

import websockets

from harness.api import api, call
from harness.link import connect
from harness.session import bind
from harness.tap import Tap

ADA, BEN, GROUP = "list-ada", "list-ben", "list-group"
DIRECT = f"{ADA}~{BEN}"


def receipts(seq, conversation=DIRECT):
    return api("GET", f"/v1/conversations/{conversation}/messages/{seq}/receipts")


def is_frame(t, conversation):
    """Whether a frame is of this kind, and about this conversation (or a line of the list for it)."""

    def holds(frame):
        about = frame.get("conversation")
        return frame["t"] == t and conversation == (about["id"] if isinstance(about, dict) else about)

    return holds


async def list_of(session, **fields):
    page = await session.ask("conversations", **fields)
    return [line["id"] for line in page["conversations"]]


async def suite(tap):
    url = os.environ["TIDINGS_WS"]
    api("PUT", "/v1/users", {"users": [{"id": ADA}, {"id": BEN}]})
    api("POST", "/v1/conversations", {"id": GROUP, "kind": "group", "owner": ADA, "members": [BEN]})
    ada, ben, tablet = await bind(connect, url, ADA), await bind(connect, url, BEN), await bind(connect, url, BEN, "tablet")
    await ada.send(BEN, {"text": "one"})
    await ben.have(1)

    async def delivered():
        assert receipts(1) == {"delivered": 0, "read": 0, "members": 1, "receipts": [{"user": BEN, "delivered": False, "read": False}]}
        await ben.tell("stored", cursor=ben.cursor)
        frame = await ada.until(is_frame("receipts", DIRECT))
        assert frame["marks"] == [{"user": BEN, "delivered_seq": 1}], frame
        assert (receipts(1)["delivered"], receipts(1)["read"]) == (1, 0)

    async def read():
        assert (await ben.ask("read", conversation=DIRECT, seq=1))["t"] == "ok"
        frame = await ada.until(is_frame("receipts", DIRECT))
        assert frame["marks"] == [{"user": BEN, "read_seq": 1}], frame
        assert receipts(1)["receipts"] == [{"user": BEN, "delivered": True, "read": True}]

    async def counted():
        receipt = api("POST", "/v1/messages", {"conversation": GROUP, "from": ADA, "body": "to all"})
        api("PUT", f"/v1/users/{BEN}/conversations/{GROUP}/read", {"seq": receipt["seq"]})
        frame = await ada.until(is_frame("receipts", GROUP))
        assert [(m["what"], m["to_seq"], m["count"]) for m in frame["moved"]] == [("read", receipt["seq"], 1)], frame
        assert receipts(receipt["seq"], GROUP) == {"delivered": 1, "read": 1, "members": 1}

    async def off():
        api("PUT", f"/v1/users/{BEN}/receipts", {"send": False})
        assert receipts(1)["receipts"] == [{"user": BEN, "delivered": True, "read": False}]
        api("PUT", f"/v1/users/{BEN}/receipts", {"send": True})
        assert receipts(1)["read"] == 1

    async def preferences():
        answer = await ben.ask("preferences", conversation=DIRECT, pinned=True, title="Ada!")
        assert answer["t"] == "ok", answer
        for session in (ben, tablet):
            line = (await session.until(lambda f: is_frame("conversation", DIRECT)(f) and "title" in f["conversation"]))["conversation"]
            assert (line["title"], "pinned_at" in line, line["last_message"]["body"]) == ("Ada!", True, {"text": "one"}), line
        assert await list_of(ben) == [DIRECT, GROUP], "the group is newer, and not pinned"
        over_http = api("GET", f"/v1/users/{BEN}/conversations")["conversations"]
        assert [line["id"] for line in over_http] == [DIRECT, GROUP] and over_http[0]["title"] == "Ada!"
        line = api("PATCH", f"/v1/users/{BEN}/conversations/{DIRECT}", {"pinned": False, "title": None})
        assert "pinned_at" not in line and "title" not in line, line
        assert await list_of(ben) == [GROUP, DIRECT]

    async def filters():
        await ben.ask("preferences", conversation=GROUP, archived=True)
        assert (await list_of(ben), await list_of(ben, filter="archived")) == ([DIRECT], [GROUP])
        await ben.ask("preferences", conversation=DIRECT, marked_unread=True)
        assert await list_of(ben, filter="unread") == [DIRECT]
        refused = await ben.ask("conversations", filter="all")
        assert refused["code"] == "invalid_field" and refused["message"].startswith("filter"), refused
        await ben.ask("preferences", conversation=DIRECT, hidden=True)
        assert await list_of(ben) == []
        await ada.send(BEN, {"text": "two"})
        assert await list_of(ben) == [DIRECT]

    async def cleared():
        await ben.ask("preferences", conversation=DIRECT, clear_to_seq=1)
        history = await ben.ask("history", conversation=DIRECT)
        assert [entry["seq"] for entry in history["entries"]] == [2], history
        hers = await ada.ask("history", conversation=DIRECT)
        assert [entry["seq"] for entry in hers["entries"]] == [1, 2], hers
        status, _, problem = call("PATCH", f"/v1/users/{BEN}/conversations/nowhere", {"pinned": True})
        assert (status, problem["code"]) == (404, "not_found"), problem

    await tap.async_case("a message is delivered once its cursor is stored", delivered)
    await tap.async_case("and read once the mark covers it", read)
    await tap.async_case("a group's members are told counts", counted)
    await tap.async_case("who sends no read receipts has read nothing", off)
    await tap.async_case("preferences reach all sessions, and order the list", preferences)
    await tap.async_case("filters, archived and hidden conversations", filters)
    await tap.async_case("what a user has cleared is gone for that user", cleared)


tap = Tap(f"websockets {websockets.__version__}, Python {sys.version.split()[0]}")
asyncio.run(suite(tap))
tap.end()
