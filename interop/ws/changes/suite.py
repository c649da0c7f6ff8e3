"""What becomes of a message after it was sent: edits, recalls, reactions, answers, pins and mentions, with `websockets` for the members
and `urllib` for the app's server. Each member keeps a view of its own by the rules of docs/chat.md, which must equal history."""

import asyncio
import os
import urllib.parse

import websockets

from harness.api import api, call, token
from harness.link import connect
from harness.server import Server
from harness.session import bind
from harness.tap import Tap


def apply(view, entry):
    """What a client does with an entry: docs/chat.md, Edit and recall."""
    if entry["kind"] == "message":
        view[entry["seq"]] = entry
    target = view.get(entry.get("target"))
    if entry["kind"] == "edit" and target and entry["version"] > target.get("version", 1) and "recalled" not in target:
        target.update(body=entry["body"], type=entry["type"], version=entry["version"], edited_at=entry["at"])
        target["mentions"], target["edited_by"] = entry.get("mentions", []), entry.get("from")
    if entry["kind"] == "recall" and target:
        target.update(body=None, mentions=[], recalled={"at": entry["at"], **({"by": entry["from"]} if "from" in entry else {})})
        target.pop("reactions", None)
        target.pop("pinned", None)
        for other in view.values():
            if other.get("reply_to", {}).get("seq") == entry["target"]:
                other["reply_to"].pop("body", None)
                other["reply_to"]["recalled"] = True
    if entry["kind"] == "reactions":
        for change in entry["body"]["changes"]:
            of = view.get(change["seq"])
            if of and "recalled" not in of:
                of["reactions"] = change["reactions"]
    if entry["kind"] == "pins" and target:
        target.pop("pinned", None)
        if entry["body"]["pinned"]:
            target["pinned"] = {"at": entry["at"], **({"by": entry["from"]} if "from" in entry else {})}


def comparable(entry):
    """Without what a live reader cannot know: an answer's preview is that of the moment."""
    kept = {k: v for k, v in entry.items() if v not in ([], None) and k != "reply_to"}
    kept["reply_to"] = entry.get("reply_to", {}).get("seq")
    return kept


def view_of(entries):
    view = {}
    for entry in entries:
        apply(view, dict(entry))
    return {seq: comparable(entry) for seq, entry in view.items()}


def history(conversation):
    page = api("GET", f"/v1/conversations/{conversation}/messages?limit=200&from_seq=1")
    return {e["seq"]: comparable(e) for e in page["entries"] if e["kind"] == "message"}


class Room:
    """A group of its own, its members bound."""

    def __init__(self, name):
        self.name = name
        self.members = [f"{name}-{n}" for n in ("ada", "ben", "cleo")]

    async def open(self, url):
        api("PUT", "/v1/users", {"users": [{"id": member} for member in self.members]})
        room = {"id": self.name, "kind": "group", "owner": self.members[0], "members": self.members[1:]}
        api("POST", "/v1/conversations", room)
        self.sessions = [await bind(connect, url, member) for member in self.members]
        return self.sessions

    async def send(self, session, body, **fields):
        answer = await ask(session, "send", conversation=self.name, body=body, **fields)
        assert answer.get("seq"), answer
        return answer["seq"]

    async def agree(self):
        """Every member has all entries, and sees what history has."""
        last = api("GET", f"/v1/conversations/{self.name}")["last_seq"]
        for session in self.sessions:
            while max((e["seq"] for e in session.entries), default=0) < last:
                await session.next()
            assert view_of(session.entries) == history(self.name), (view_of(session.entries), history(self.name))


async def ask(session, t, **fields):
    """The result of a send, an edit or a recall; the answer of others; a refusal."""
    if t not in ("send", "edit", "recall"):
        return await session.ask(t, **fields)
    session.refs += 1
    ref = session.refs
    await session.tell(t, ref=ref, **fields)
    frame = await session.until(lambda f: f.get("ref") == ref or f["t"] == "sent" and any(r.get("ref") == ref for r in f["results"]))
    return next(r for r in frame["results"] if r.get("ref") == ref) if frame["t"] == "sent" else frame


async def edits(url):
    room = Room("edits")
    ada, ben, _ = await room.open(url)
    seq = await room.send(ada, {"text": "helo"})
    edited = await ask(ada, "edit", conversation="edits", seq=seq, body={"text": "hello"}, mentions=["edits-ben"], client_msg_id="e1")
    assert edited["seq"] == seq + 1, edited
    again = await ask(ada, "edit", conversation="edits", seq=seq, body={"text": "hello"}, mentions=["edits-ben"], client_msg_id="e1")
    assert again["seq"] == edited["seq"] and again["duplicate"], again
    other = await ask(ada, "edit", conversation="edits", seq=seq, body={"text": "other"}, client_msg_id="e1")
    assert other["code"] == "client_msg_id_reused", other
    stale = await ask(ada, "edit", conversation="edits", seq=seq, body=1, if_version=1)
    assert (stale["code"], stale["retry"]) == ("version_conflict", False), stale
    others = await ask(ben, "edit", conversation="edits", seq=seq, body=1)
    assert others["code"] == "forbidden", others
    by_app = api("PATCH", f"/v1/conversations/edits/messages/{seq}", {"body": "by the app", "if_version": 2})
    assert by_app["version"] == 3, by_app
    notice = await ask(ada, "edit", conversation="edits", seq=edited["seq"], body=1)
    assert notice["code"] == "not_a_message", notice
    assert (await ask(ada, "edit", conversation="edits", seq=99, body=1))["code"] == "not_found"
    await room.agree()
    assert api("GET", f"/v1/conversations/edits/messages/{seq}")["body"] == "by the app"


async def recalls(url):
    room = Room("recalls")
    ada, ben, cleo = await room.open(url)
    seq = await room.send(ada, {"text": "a secret"}, mentions=["recalls-ben"])
    await ask(ada, "edit", conversation="recalls", seq=seq, body={"text": "a secret, edited"})
    answer = await room.send(ben, {"text": "why"}, reply_to=seq)
    preview = (await cleo.until(lambda f: f["t"] == "messages" and f["entries"][-1]["seq"] == answer))["entries"][-1]["reply_to"]
    assert (preview["seq"], preview["from"], preview["body"]) == (seq, "recalls-ada", {"text": "a secret, edited"}), preview
    await cleo.link.cut()
    recalled = await ask(ada, "recall", conversation="recalls", seq=seq)
    again = await ask(ada, "recall", conversation="recalls", seq=seq)
    assert again["seq"] == recalled["seq"] and again["duplicate"], again
    assert (await ask(ada, "edit", conversation="recalls", seq=seq, body=1))["code"] == "message_recalled"
    back = await bind(connect, url, "recalls-cleo", cursor=cleo.cursor)
    back.entries = cleo.entries + back.entries
    room.sessions[2] = back
    await room.agree()
    fresh = api("GET", "/v1/users/recalls-cleo/sync")
    page = api("GET", "/v1/conversations/recalls/messages?limit=200")
    assert "secret" not in str(page) and "secret" not in str(fresh), page
    shown = next(e for e in page["entries"] if e["seq"] == answer)["reply_to"]
    assert shown["recalled"] and "body" not in shown, shown
    listed = api("GET", "/v1/users/recalls-ben/conversations")["conversations"][0]
    assert (listed["unread"], listed["mentions"]) == (0, 0), listed
    assert api("GET", "/v1/users/recalls-ben/mentions")["entries"] == []


async def admins_and_late_senders(url):
    room = Room("admins")
    ada, ben, _ = await room.open(url)
    seq = await room.send(ben, "by a member")
    recalled = await ask(ada, "recall", conversation="admins", seq=seq)
    assert recalled.get("seq"), recalled
    await room.agree()
    # No time to change a message at all: it is too late as soon as the clock has moved on.
    with Server(settings={"messages.group_recall_window_ms": 0, "messages.group_edit_window_ms": 0}) as own:
        call("PUT", "/v1/users", {"users": [{"id": "u"}, {"id": "v"}]}, url=own.url)
        call("POST", "/v1/conversations", {"id": "g", "kind": "group", "owner": "v", "members": ["u"]}, url=own.url)
        _, _, sent = call("POST", "/v1/messages", {"conversation": "g", "from": "u", "body": 1}, url=own.url)
        while call("POST", "/v1/messages", {"conversation": "g", "from": "v", "body": 1}, url=own.url)[2]["at"] == sent["at"]:
            pass
        for method, path, body in (("DELETE", "", None), ("PATCH", "", {"body": 2})):
            status, _, why = call(method, f"/v1/conversations/g/messages/{sent['seq']}{path}", body, url=own.url, key=token("u"))
            assert (status, why["code"]) == (403, "forbidden"), why
            status, _, _ = call(method, f"/v1/conversations/g/messages/{sent['seq']}{path}", body, url=own.url, key=token("v"))
            assert status == (200 if method == "DELETE" else 409), "the owner may, but not edit what is recalled"


async def reactions(url):
    room = Room("reactions")
    ada, ben, cleo = await room.open(url)
    seq = await room.send(ada, "react")
    before = api("GET", "/v1/conversations/reactions")["last_seq"]
    assert (await ask(ben, "react", conversation="reactions", seq=seq, key="👍"))["t"] == "ok"
    assert (await ask(ben, "react", conversation="reactions", seq=seq, key="👍"))["t"] == "ok"
    thumb = urllib.parse.quote("👍")
    many = [f"reactor-{n}" for n in range(40)]
    api("PUT", "/v1/users", {"users": [{"id": user} for user in many]})
    api("POST", "/v1/conversations/reactions/members", {"add": many})
    for user in many:
        answer = api("PUT", f"/v1/conversations/reactions/messages/{seq}/reactions/{thumb}?user={user}")
    assert answer["reactions"] == [{"key": "👍", "count": 41, "users": many[:-4:-1]}], answer
    api("DELETE", f"/v1/conversations/reactions/messages/{seq}/reactions/{thumb}?user={many[-1]}")

    def told(session):
        changes = [c for e in session.entries if e["kind"] == "reactions" for c in e["body"]["changes"]]
        return bool(changes) and changes[-1]["reactions"][0]["count"] == 40

    for session in (ada, ben, cleo):
        while not told(session):
            await session.next()
    entries = [e for e in ada.entries if e["kind"] == "reactions"]
    assert len(entries) <= 12, f"{len(entries)} entries tell of 42 reactions"
    await room.agree()
    page = api("GET", f"/v1/conversations/reactions/messages/{seq}/reactions?limit=25")
    rest = api("GET", f"/v1/conversations/reactions/messages/{seq}/reactions?limit=25&after={page['next']}")
    users = {r["user"] for r in page["reactions"] + rest["reactions"]}
    assert users == {"reactions-ben", *many[:-1]} and "next" not in rest, users
    kiss = "\U0001f469\U0001f3fb\u200d\u2764\ufe0f\u200d\U0001f48b\u200d\U0001f469\U0001f3ff"
    assert len(kiss.encode()) == 35, "the longest emoji"
    for remove in (False, True):
        assert (await ask(ben, "react", conversation="reactions", seq=seq, key=kiss, remove=remove))["t"] == "ok"
    too_long = await ask(ben, "react", conversation="reactions", seq=seq, key="x" * 65)
    assert too_long["code"] == "limit_exceeded", too_long
    assert (await ask(ben, "react", conversation="reactions", seq=before + 90, key="x"))["code"] == "not_found"
    listed = api("GET", "/v1/users/reactions-cleo/conversations")["conversations"][0]
    assert listed["unread"] == 1, "reactions are not unread"


async def pins_and_mentions(url):
    room = Room("pins")
    ada, ben, _ = await room.open(url)
    seqs = [await room.send(ben, f"for cleo {n}", mentions=["pins-cleo"]) for n in range(3)]
    refused = await ask(ben, "pin", conversation="pins", seq=seqs[0])
    assert refused["code"] == "forbidden", refused
    for seq in (seqs[2], seqs[0]):
        assert (await ask(ada, "pin", conversation="pins", seq=seq))["t"] == "ok"
    assert [e["seq"] for e in api("GET", "/v1/conversations/pins/pins")["entries"]] == [seqs[0], seqs[2]]
    await ask(ada, "pin", conversation="pins", seq=seqs[2], remove=True)
    await room.agree()
    assert [e["seq"] for e in api("GET", "/v1/conversations/pins/pins")["entries"]] == [seqs[0]]
    first = api("GET", "/v1/users/pins-cleo/mentions?limit=2")
    second = api("GET", f"/v1/users/pins-cleo/mentions?limit=2&after={first['next']}")
    assert [e["seq"] for e in first["entries"] + second["entries"]] == seqs[::-1], (first, second)
    refused = await ask(ben, "send", conversation="pins", body="all of you", mentions=["@all"])
    assert refused["code"] == "forbidden", refused
    to_all = await room.send(ada, "all of you", mentions=["@all"])
    mentions = {user: [e["seq"] for e in api("GET", f"/v1/users/{user}/mentions")["entries"]] for user in room.members}
    assert mentions == {"pins-ada": [], "pins-ben": [to_all], "pins-cleo": [to_all, *seqs[::-1]]}, mentions
    assert api("PATCH", "/v1/conversations/pins", {"mention_all": "members"})["mention_all"] == "members"
    assert await room.send(ben, "all of you, too", mentions=["@all"]) > to_all
    answers = [await room.send(ada, f"answer {n}", reply_to=seqs[1]) for n in range(3)]
    page = api("GET", f"/v1/conversations/pins/messages/{seqs[1]}/replies?limit=2")
    rest = api("GET", f"/v1/conversations/pins/messages/{seqs[1]}/replies?limit=2&after={page['next']}")
    assert [e["seq"] for e in page["entries"] + rest["entries"]] == answers
    assert (await ask(ada, "send", conversation="pins", body=1, reply_to=999))["code"] == "not_found"


async def a_crash():
    """Nothing that was acknowledged is lost or shown again, whatever follows."""
    with Server(env={"TIDINGS_API_KEY": os.environ["TIDINGS_API_KEY"], "TIDINGS_TOKEN_KEY": os.environ["TIDINGS_TOKEN_KEY"]}) as own:
        def here(method, path, body=None):
            status, _, answer = call(method, path, body, url=own.url)
            assert status < 300, answer
            return answer

        here("PUT", "/v1/users", {"users": [{"id": "a"}, {"id": "b"}]})
        large = "x" * 20_000
        for n in range(6):
            here("POST", "/v1/messages", {"from": "a", "to": "b", "body": f"{large} body {n}"})
        here("PATCH", "/v1/conversations/a~b/messages/1", {"from": "a", "body": "edited", "client_msg_id": "e"})
        here("DELETE", "/v1/conversations/a~b/messages/2?from=a&client_msg_id=r")
        here("PUT", "/v1/conversations/a~b/messages/3/reactions/x?user=b")
        here("PUT", "/v1/conversations/a~b/messages/4/reactions/x?user=b")
        before = here("GET", "/v1/conversations/a~b/messages?limit=50")
        own.kill()
        own.start()
        again = here("PATCH", "/v1/conversations/a~b/messages/1", {"from": "a", "body": "edited", "client_msg_id": "e"})
        assert again["duplicate"] and again["version"] == 2, again
        assert here("DELETE", "/v1/conversations/a~b/messages/2?from=a&client_msg_id=r")["duplicate"]
        after = here("GET", "/v1/conversations/a~b/messages?limit=50")
        known = [e for e in after["entries"] if e["seq"] <= before["conversation_last_seq"]]
        assert known == before["entries"], (known, before["entries"])
        # What nobody was told of before the crash is told after it.
        while True:
            page = here("GET", "/v1/conversations/a~b/messages?limit=50")
            told = {c["seq"] for e in page["entries"] if e["kind"] == "reactions" for c in e["body"]["changes"]}
            if told == {3, 4}:
                break
            await asyncio.sleep(0.05)


async def main():
    tap = Tap(f"websockets {websockets.__version__}")
    url = os.environ["TIDINGS_WS"]
    await tap.async_case("an edit reaches every member, once, and only by those who may", lambda: edits(url))
    await tap.async_case("a recalled message is gone everywhere, also for those who were away", lambda: recalls(url))
    await tap.async_case("the owner recalls a member's message, and a late sender is refused", lambda: admins_and_late_senders(url))
    await tap.async_case("reactions are counted once a user, and told once an interval", lambda: reactions(url))
    await tap.async_case("pins, mentions and answers are listed page by page", lambda: pins_and_mentions(url))
    await tap.async_case("changes survive a crash, and their retries change nothing", a_crash)
    tap.end()


asyncio.run(main())
