"""Users write to an account, and its agents answer as the account: what the apps of both see with `websockets`."""

import asyncio
import os
import sys

import websockets

from harness.api import api, call, token
from harness.link import connect
from harness.session import bind
from harness.tap import Tap

SHOP, BEN, CY, ANN, AMY = "biz-shop", "biz-ben", "biz-cy", "biz-ann", "biz-amy"
OF_BEN, OF_CY = f"{BEN}~{SHOP}", f"{CY}~{SHOP}"


def brief(entry):
    return entry["conversation"], entry["seq"], entry["kind"], entry.get("from"), entry.get("agent")


async def list_of(session, **fields):
    page = await session.ask("conversations", account=SHOP, **fields)
    return [(line["id"], line.get("assigned_to"), line["unread"]) for line in page["conversations"]]


async def suite(tap):
    url = os.environ["TIDINGS_WS"]
    api("PUT", "/v1/users", {"users": [{"id": user} for user in (BEN, CY, ANN, AMY)]})
    api("POST", "/v1/conversations", {"id": SHOP, "kind": "official", "name": "The shop", "members": [BEN, CY]})
    desk = api("PATCH", f"/v1/conversations/{SHOP}/desk", {"add": [ANN, AMY]})
    assert desk == {"account": SHOP, "open_to": "followers", "show_agents": False, "agents": [AMY, ANN]}, desk
    ben, cy, ann, amy = [await bind(connect, url, user) for user in (BEN, CY, ANN, AMY)]

    async def answered():
        receipt = await ben.send(SHOP, {"text": "When are you open?"})
        assert (receipt["conversation"], receipt["seq"]) == (OF_BEN, 1), receipt
        for agent in (ann, amy):
            (entry,) = await agent.have(1)
            assert brief(entry) == (OF_BEN, 1, "message", BEN, None), entry
        answer = await ann.ask("send", conversation=OF_BEN, client_msg_id="1", body={"text": "From nine to five"})
        assert answer["seq"] == 2, answer
        assert brief((await amy.have(2))[1]) == (OF_BEN, 2, "message", SHOP, ANN)
        assert brief((await ben.have(2))[1]) == (OF_BEN, 2, "message", SHOP, None), "a user is not told who answers"
        again = await ann.ask("send", conversation=OF_BEN, client_msg_id="1", body={"text": "From nine to five"})
        assert (again["seq"], again["duplicate"]) == (2, True), again
        other = await amy.ask("send", conversation=OF_BEN, client_msg_id="1", body={"text": "and on Sundays"})
        assert other["seq"] == 3, "another agent's ids are other ones"
        history = await ben.ask("history", conversation=OF_BEN)
        assert [brief(entry)[3:] for entry in history["entries"]] == [(BEN, None), (SHOP, None), (SHOP, None)], history

    async def listed():
        await cy.send(SHOP, {"text": "Do you deliver?"})
        assert await list_of(amy) == [(OF_CY, None, 1), (OF_BEN, None, 1)]
        assert (await amy.ask("read", conversation=OF_BEN, seq=3))["t"] == "ok"
        assert await list_of(ann, filter="unread") == [(OF_CY, None, 1)], "what one agent has read is read"

        def is_read(frame):
            line = frame.get("conversation")
            return frame["t"] == "conversation" and (line["id"], line["read_seq"]) == (OF_BEN, 3)

        line = (await ann.until(is_read))["conversation"]
        assert (line["account"], line["unread"]) == (SHOP, 0), line
        receipts = api("GET", f"/v1/conversations/{OF_BEN}/messages/1/receipts")
        assert receipts["receipts"] == [{"user": SHOP, "delivered": True, "read": True}], receipts
        first = await ann.ask("conversations", account=SHOP, limit=1)
        second = await ann.ask("conversations", account=SHOP, limit=1, after=first["next"])
        assert [page["conversations"][0]["id"] for page in (first, second)] == [OF_CY, OF_BEN]
        refused = await ben.ask("conversations", account=SHOP)
        assert refused["code"] == "forbidden", refused

    async def taken():
        agents = ((ann, ANN), (amy, AMY))
        takes = [agent.ask("assign", conversation=OF_CY, assigned_to=name, if_assigned_to=None) for agent, name in agents]
        answers = await asyncio.gather(*takes)
        assert sorted(answer.get("code", answer["t"]) for answer in answers) == ["assignment_conflict", "ok"], answers
        winner = ANN if answers[0]["t"] == "ok" else AMY
        assert await list_of(ann, assigned_to=winner) == [(OF_CY, winner, 1)]
        assert await list_of(ann, assigned_to="@nobody") == [(OF_BEN, None, 0)]
        told = (await ann.ask("history", conversation=OF_CY))["entries"][-1]
        assert brief(told) == (OF_CY, 2, "assignment", SHOP, winner) and told["body"] == {"assigned_to": winner}, told
        hers = (await cy.ask("history", conversation=OF_CY))["entries"][-1]
        assert brief(hers) == (OF_CY, 2, "assignment", SHOP, None) and hers["body"] == {}, hers
        refused = await ben.ask("assign", conversation=OF_BEN, assigned_to=None)
        assert refused["code"] == "forbidden", refused
        answer = api("PUT", f"/v1/conversations/{OF_CY}/assignment", {"assigned_to": ANN})
        assert answer == {"conversation": OF_CY, "assigned_to": ANN}, answer

    async def resumed():
        last = (await ann.ask("history", conversation=OF_CY))["entries"][-1]["seq"]
        while not any((entry["conversation"], entry["seq"]) == (OF_CY, last) for entry in ann.entries):
            await ann.next()
        cursor = ann.cursor
        await ann.link.cut()
        await ben.send(SHOP, {"text": "missed"})
        await cy.send(SHOP, {"text": "missed, too"})
        await amy.ask("send", conversation=OF_BEN, client_msg_id="2", body={"text": "answered"})
        again = await bind(connect, url, ANN, cursor=cursor)
        assert again.bound["resume"] == {"complete": True}, again.bound
        missed = [brief(entry) for entry in await again.have(3)]
        of_cy = (OF_CY, missed[1][1], "message", CY, None)
        assert missed == [(OF_BEN, 4, "message", BEN, None), of_cy, (OF_BEN, 5, "message", SHOP, AMY)], missed
        return again

    async def changed():
        edited = await amy.ask("edit", conversation=OF_BEN, seq=2, body={"text": "From ten to five"})
        assert edited["seq"] == 6, "one agent changes what another one has written"
        assert (await ben.ask("react", conversation=OF_BEN, seq=2, key="+1"))["t"] == "ok"
        answer = await ben.ask("send", conversation=OF_BEN, client_msg_id="r", body="thanks", reply_to=2)
        page = await ann_again[0].ask("history", conversation=OF_BEN, from_seq=2, to_seq=2)
        (message,) = page["entries"]
        assert message["body"] == {"text": "From ten to five"}, message
        assert message["reactions"] == [{"key": "+1", "count": 1, "users": [BEN]}], message
        recalled = await amy.ask("recall", conversation=OF_BEN, seq=3)
        assert recalled["seq"] > answer["seq"], recalled

    async def removed():
        ann = ann_again[0]
        desk = api("PATCH", f"/v1/conversations/{SHOP}/desk", {"remove": [ANN]})
        assert desk["agents"] == [AMY], desk
        refused = await ann.ask("send", conversation=OF_BEN, client_msg_id="3", body="still here?")
        assert refused["code"] == "not_found", refused
        last = await ben.send(SHOP, {"text": "Hello?"})

        def has_last(frame):
            newest = frame["entries"][-1] if frame["t"] == "messages" else {}
            return newest.get("conversation") == OF_BEN and newest["seq"] >= last["seq"]

        await amy.until(has_last)
        assert (await ann.ask("ping"))["t"] == "pong", "what was handed out before has come"
        assert all(entry["body"] != {"text": "Hello?"} for entry in ann.entries), ann.entries
        while (OF_CY, None) not in [line[:2] for line in await list_of(amy, assigned_to="@nobody")]:
            pass
        told = (await amy.ask("history", conversation=OF_CY))["entries"][-1]
        assert (told["kind"], told["body"]) == ("assignment", {"assigned_to": None}), told
        status, _, problem = call("GET", f"/v1/conversations/{OF_BEN}/messages", key=token(ANN))
        assert (status, problem["code"]) == (404, "not_found"), problem

    async def shown():
        api("PATCH", f"/v1/conversations/{SHOP}/desk", {"show_agents": True})
        history = await ben.ask("history", conversation=OF_BEN, from_seq=2, to_seq=2)
        assert brief(history["entries"][0]) == (OF_BEN, 2, "message", SHOP, ANN), history

    ann_again = []

    async def resume():
        ann_again.append(await resumed())

    await tap.async_case("a user's message reaches all agents, and the account answers, whoever does", answered)
    await tap.async_case("agents share a list and its read marks", listed)
    await tap.async_case("of two agents who take a conversation one has it", taken)
    await tap.async_case("an agent resumes in all conversations of the account", resume)
    await tap.async_case("edits, reactions, answers and recalls work as in any conversation", changed)
    await tap.async_case("a removed agent gets nothing more, and has no conversation", removed)
    await tap.async_case("users are told who answers if the account says so", shown)


tap = Tap(f"websockets {websockets.__version__}, Python {sys.version.split()[0]}")
asyncio.run(suite(tap))
tap.end()
