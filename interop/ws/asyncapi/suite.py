"""The description of all frames, against AsyncAPI's own schema, and the frames that really go over the wire against the description.
Both are judged by `jsonschema`."""

import asyncio
import json
import os
from pathlib import Path

import jsonschema
import websockets
from jsonschema import Draft7Validator, Draft202012Validator
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from harness.api import api, call, token
from harness.server import Server
from harness.session import PATIENCE
from harness.tap import Tap

INTEROP = Path(os.environ["INTEROP"])
OF_ASYNCAPI = INTEROP / "node_modules/@asyncapi/specs/schemas/3.0.0-without-$id.json"
# What docs/websocket.md says that a server sends. The description may have more.
KINDS_OF_SERVER = {
    "bound", "messages", "sent", "read", "ok", "typing", "history", "conversations", "presence", "pong", "popup", "push",
    "membership", "error", "reconnect",
}
KINDS_OF_CLIENT = {
    "bind", "send", "read", "typing", "history", "conversations", "watch_presence", "unwatch_presence", "popup",
    "popup_events", "ack", "ping", "unbind", "assign", "attention",
}


class Judge:
    """Validators by side and kind, and which kinds were seen."""

    def __init__(self, description):
        self.validators, self.seen, self.count = {}, set(), 0
        for name, message in description["components"]["messages"].items():
            # References lead to /components, which is the document's.
            schema = {"components": description["components"], "allOf": [message["payload"]]}
            Draft202012Validator.check_schema(schema)
            self.validators[name] = Draft202012Validator(schema)

    def look(self, side, frame):
        name = f"{side}_{frame['t']}"
        assert name in self.validators, f"{name} is not described: {frame}"
        self.validators[name].validate(frame)
        self.seen.add(name)
        self.count += 1
        return frame

    def refuses(self, side, frame):
        return not self.validators[f"{side}_{frame['t']}"].is_valid(frame)

    def missing(self, side, kinds):
        return kinds - {name.removeprefix(f"{side}_") for name in self.seen}


class Client:
    def __init__(self, judge, socket):
        self.judge, self.socket, self.refs = judge, socket, 0
        # Frames that came while another was waited for: an answer and a notice of one deed come in either order.
        self.unclaimed = []

    async def tell(self, t, **fields):
        await self.socket.send(json.dumps(self.judge.look("client", {"t": t, **fields})))

    async def next(self):
        return self.judge.look("server", json.loads(await asyncio.wait_for(self.socket.recv(), PATIENCE)))

    async def until(self, t, **fields):
        def is_wanted(frame):
            return frame["t"] == t and all(frame.get(name) == value for name, value in fields.items())

        for at, frame in enumerate(self.unclaimed):
            if is_wanted(frame):
                return self.unclaimed.pop(at)
        while True:
            frame = await self.next()
            if is_wanted(frame):
                return frame
            assert frame["t"] != "error", frame
            self.unclaimed.append(frame)

    async def ask(self, t, answer, **fields):
        self.refs += 1
        await self.tell(t, ref=self.refs, **fields)
        if answer == "sent":
            frame = await self.until("sent")
            assert frame["results"][0]["ref"] == self.refs
            return frame
        return await self.until(answer, ref=self.refs)

    async def read_to_the_end(self):
        """What comes before the goodbye is looked at; the goodbye's code."""
        try:
            while True:
                await self.next()
        except ConnectionClosed:
            return self.socket.close_code


async def bind(server, judge, user, **fields):
    client = Client(judge, await connect(server.ws, max_size=None, open_timeout=PATIENCE, ping_interval=None))
    await client.tell("bind", token=token(user, key=server.token_key), device_id=f"{user}-phone", **fields)
    client.bound = await client.until("bound")
    return client


async def frames(server, judge):
    """Frames of every kind that the page on the listener has."""

    def app(method, path, body=None):
        return api(method, path, body, url=server.url, key=server.api_key)

    app("PUT", "/v1/users", {"users": [{"id": user, "name": user.title()} for user in ("ada", "ben", "cy")]})
    app("POST", "/v1/conversations", {"id": "house", "kind": "group", "name": "House 7", "owner": "ada", "members": ["ben", "cy"]})
    app("PUT", "/v1/popups/hello", {"state": "live", "placements": ["start"], "variants": [{"id": "a", "content": {"title": "Hello"}}]})
    ada = await bind(server, judge, "ada", device_kind="desktop", app_version="1.0", push=True)
    ben = await bind(server, judge, "ben")
    for n, body in enumerate(({"text": "grüße"}, "text", 7, None, [True], {"deep": {"er": []}})):
        await ada.ask("send", "sent", conversation="house", body=body, type="note", client_msg_id=f"m{n}", mentions=["ben"])
        await ben.until("messages")
    await ada.ask("send", "sent", to="ben", body="hi", silent=True, skip_push=True)
    await ben.until("messages")
    again = await ada.ask("send", "sent", conversation="house", body="text", type="note", client_msg_id="m1", mentions=["ben"])
    assert again["results"][0]["duplicate"] is True, again
    await ben.ask("read", "ok", conversation="house", seq=3)
    await ben.until("read")
    await ada.tell("typing", conversation="house")
    await ben.until("typing")
    await ben.ask("attention", "ok", state="background")
    await ben.tell("attention", state="foreground")
    await ben.ask("history", "history", conversation="house", limit=3)
    await ben.ask("history", "history", conversation="house", from_seq=2, to_seq=5, from_time=0)
    page = await ben.ask("conversations", "conversations", limit=1)
    await ben.ask("conversations", "conversations", limit=1, after=page["next"])
    await ben.ask("watch_presence", "presence", users=["ada", "cy"], conversation="house")
    await ben.ask("unwatch_presence", "ok", users=["ada"])
    await ben.ask("unwatch_presence", "ok")
    await ada.ask("ping", "pong")
    await ada.tell("ping")
    await ada.until("pong")
    question = {"placement": "start", "attributes": {"country": "DE", "age": 7, "tags": ["a"]}}
    shown = await ben.ask("popup", "popup", question=question)
    assert shown["show"]["popup"] == "hello", shown
    await ben.ask("popup", "popup", question={"placement": "nowhere"})
    await ben.ask("popup_events", "ok", events=[{"id": "e1", "decision": shown["show"]["decision"], "type": "click", "at": 1}])
    app("POST", "/v1/push", {"to": {"users": ["ada"]}, "body": {"id": 7}, "collapse_key": "k", "priority": "high"})
    push = await ada.until("push")
    await ada.tell("ack", pushes=[push["push"]])
    app("POST", "/v1/conversations", {"id": "shop", "kind": "official", "members": ["ben"]})
    app("PATCH", "/v1/conversations/shop/desk", {"add": ["ada"]})
    await ben.ask("send", "sent", to="shop", body="hello")
    await ada.until("messages")
    await ada.ask("assign", "ok", conversation="ben~shop", assigned_to="ada", if_assigned_to=None)
    await ada.ask("conversations", "conversations", account="shop", assigned_to="@me")
    app("POST", "/v1/conversations/house/members", {"remove": ["ben"]})
    await ben.until("membership", member=False)
    await ben.tell("send", ref=99, conversation="house", body=1)
    await ben.until("error", ref=99, code="not_a_member")
    ben.socket.transport.abort()
    ben = await bind(server, judge, "ben", cursor=ben.bound["cursor"])
    ben.socket.transport.abort()
    # A cursor of a store of another time: what was held is void.
    ben = await bind(server, judge, "ben", cursor="1.0.0.0")
    assert ben.bound["resume"].get("reset") is True, ben.bound
    cy = await bind(server, judge, "cy")
    await cy.tell("unbind")
    assert await cy.read_to_the_end() == 1000
    stop = asyncio.get_running_loop().run_in_executor(None, server.stop)
    assert await ada.read_to_the_end() == 4009 and await ben.read_to_the_end() == 4009
    await stop


def main():
    tap = Tap(f"jsonschema {jsonschema.__version__}, websockets {websockets.__version__}")
    with Server() as server:
        status, headers, description = call("GET", "/asyncapi.json", url=server.url, key=server.api_key)
        tap.report("the server has the description", status == 200 and headers["Content-Type"] == "application/json", f"{status} {headers}")
        kept = json.loads((INTEROP.parent / "docs/asyncapi.json").read_text())
        tap.report("it is the one in docs/", description == kept, "docs/asyncapi.json says something else")

        def whole():
            Draft7Validator(json.loads(OF_ASYNCAPI.read_text())).validate(description)

        tap.case("AsyncAPI 3.0's own schema finds nothing wrong", whole)
        judge = Judge(description)
        tap.case("frames of every kind are as described", lambda: asyncio.run(frames(server, judge)))
    missing = judge.missing("server", KINDS_OF_SERVER), judge.missing("client", KINDS_OF_CLIENT)
    tap.report("frames of every kind were seen", missing == (set(), set()), f"not seen: {missing}")
    tap.report("there were enough to judge", judge.count > 60, str(judge.count))
    tap.report("what is wrong is found", all(judge.refuses(side, frame) for side, frame in [
        ("client", {"t": "read", "conversation": "g"}),
        ("client", {"t": "read", "conversation": "g", "seq": "1"}),
        ("client", {"t": "send", "to": "x"}),
        ("server", {"t": "messages", "cursor": "1", "entries": [{"seq": 1}]}),
        ("server", {"t": "error", "code": "nonsense", "message": "", "retry": False}),
    ]), "a frame that is wrong is called right")
    tap.end()


main()
