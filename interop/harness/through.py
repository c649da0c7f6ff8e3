"""What every reverse proxy must let through unharmed, whichever it is: cases for their suites."""

import asyncio
import json

import httpx
import websockets
from harness.api import token
from harness.event_stream import EventStream

PATIENCE_S = 120


class Through:
    """The server behind a proxy: `url` is where the proxy listens, `verify` whom it is believed to be by."""

    def __init__(self, tap, server, url, prefix, verify=True, host=None):
        self.tap, self.server, self.url, self.prefix = tap, server, url, prefix
        self.verify = verify
        # The name that the certificate has, where the address has none.
        self.host = host

    def client(self, **options):
        headers = {"Authorization": f"Bearer {self.server.api_key}", **({"Host": self.host} if self.host else {})}
        return httpx.Client(base_url=self.url, verify=self.verify, headers=headers, timeout=PATIENCE_S, **options)

    def get(self, path, **options):
        with self.client() as client:
            return client.get(path, extensions={"sni_hostname": self.host} if self.host else {}, **options)

    def call(self, client, method, path, **options):
        return client.request(method, path, extensions={"sni_hostname": self.host} if self.host else {}, **options)

    def session(self):
        address = self.url.replace("http", "ws", 1) + "/v1/connect"
        options = {"ssl": self.verify, "server_hostname": self.host} if address.startswith("wss") else {}
        return websockets.connect(address, open_timeout=PATIENCE_S, ping_interval=None, max_size=2**24, **options)

    async def bound(self, session, user, **more):
        bind = {"t": "bind", "token": token(user, key=self.server.token_key), "device_id": f"{user}-d", **more}
        await session.send(json.dumps(bind))
        return await self.next(session, "bound")

    async def next(self, session, kind):
        while True:
            frame = json.loads(await asyncio.wait_for(session.recv(), PATIENCE_S))
            if frame["t"] == kind:
                return frame
            assert frame["t"] != "error", frame

    def users(self):
        ids = [f"{self.prefix}-{name}" for name in ("ada", "ben")] + [f"{self.prefix}-m{number}" for number in range(20)]
        with self.client() as client:
            assert self.call(client, "PUT", "/v1/users", json={"users": [{"id": id} for id in ids]}).status_code == 200

    def sends(self):
        with self.client() as client:
            for number in range(100):
                body = {"from": f"{self.prefix}-ada", "to": f"{self.prefix}-ben", "client_msg_id": f"s{number}", "body": {"text": "ä" * (number * 300)}}
                answer = self.call(client, "POST", "/v1/messages", json=body)
                assert answer.status_code == 200, answer.text
            page = self.call(client, "GET", f"/v1/conversations/{self.prefix}-ada~{self.prefix}-ben/messages", params={"from_seq": 1, "limit": 100}).json()
        assert [len(entry["body"]["text"]) for entry in page["entries"]] == [number * 300 for number in range(len(page["entries"]))]
        assert len(page["entries"]) > 10, len(page["entries"])

    def chunked(self):
        text = json.dumps({"from": f"{self.prefix}-ada", "to": f"{self.prefix}-ben", "body": "c" * 50_000}).encode()
        with self.client() as client:
            answer = self.call(client, "POST", "/v1/messages", content=(text[at:at + 999] for at in range(0, len(text), 999)), headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text

    def refusals(self):
        with self.client() as client:
            for method, path, status, code, body in [
                ("GET", f"/v1/users/{self.prefix}-nobody", 404, "not_found", None),
                ("DELETE", "/v1/messages", 405, "method_not_allowed", None),
                ("POST", "/v1/messages", 422, "invalid_field", {"from": f"{self.prefix}-ada"}),
                ("POST", "/v1/messages", 413, "limit_exceeded", {"from": f"{self.prefix}-ada", "to": f"{self.prefix}-ben", "body": "z" * 3_000_000}),
            ]:
                answer = self.call(client, method, path, json=body)
                assert answer.status_code == status and answer.headers["content-type"] == "application/problem+json", (path, answer.status_code, answer.text[:300])
                assert answer.json()["code"] == code, answer.text
            assert self.call(client, "GET", "/v1/users/x", headers={"Authorization": "Bearer nobody"}).headers["www-authenticate"] == "Bearer"

    def export(self):
        with self.client() as client:
            popup = {"state": "live", "placements": [self.prefix], "variants": [{"id": "a", "content": {"title": "Hi"}}]}
            assert self.call(client, "PUT", f"/v1/popups/{self.prefix}", json=popup).status_code in (200, 201)
            question = {"user": f"{self.prefix}-ada", "placement": self.prefix}
            decision = self.call(client, "POST", "/v1/popups/decide", json=question).json()["decision"]
            for begin in range(0, 10_000, 1_000):
                events = [{"id": f"e{number}", "type": "click", "decision": decision} for number in range(begin, begin + 1_000)]
                answer = self.call(client, "POST", "/v1/popup-events", json={"events": events})
                assert answer.status_code == 202, answer.text
            answer = self.call(client, "GET", "/v1/popup-events", params={"popup": self.prefix, "format": "jsonl"})
        assert answer.status_code == 200 and len(answer.content) > 1_000_000, (answer.status_code, len(answer.content))
        ids = [json.loads(line)["id"] for line in answer.text.splitlines()]
        assert sorted(id for id in ids if id.startswith("e")) == sorted(f"e{number}" for number in range(10_000)), len(ids)

    def websocket(self):
        async def run():
            async with self.session() as ada, self.session() as ben:
                assert (await self.bound(ada, f"{self.prefix}-ada"))["user"] == f"{self.prefix}-ada"
                await self.bound(ben, f"{self.prefix}-ben")
                for number, size in enumerate([0, 1, 125, 126, 127, 20_000, 60_000]):
                    body = {"n": number, "text": "é" * (size // 2)}
                    send = {"t": "send", "ref": number, "to": f"{self.prefix}-ben", "body": body}
                    await ada.send(json.dumps(send, ensure_ascii=False))
                    assert (await self.next(ben, "messages"))["entries"][-1]["body"] == body
                pong = await ada.ping(b"still there?")
                await asyncio.wait_for(pong, PATIENCE_S)
                await ada.send(json.dumps({"t": "unbind"}))
                await asyncio.wait_for(ada.wait_closed(), PATIENCE_S)

        asyncio.run(run())

    def close_code(self):
        async def run():
            async with self.session() as session:
                await session.send(json.dumps({"t": "bind", "token": "nobody's", "device_id": "d"}))
                await asyncio.wait_for(session.wait_closed(), PATIENCE_S)
                assert session.close_code == 4001 and session.close_reason == "unauthorized", (session.close_code, session.close_reason)

        asyncio.run(run())

    def stream(self, client, user, **bind):
        extensions = {"sni_hostname": self.host} if self.host else {}
        return EventStream(client, token(user, key=self.server.token_key), f"{user}-s", extensions, **bind).begin()

    def event_stream(self):
        """What is said comes at once, one by one: nothing on the way holds it back. Nor does a pause end it."""
        ada, ben = f"{self.prefix}-ada", f"{self.prefix}-ben"
        with self.client() as client:
            first, second = self.stream(client, ada), self.stream(client, ben)
            for number, size in enumerate([0, 1, 20_000, 60_000]):
                body = {"n": number, "text": "é" * (size // 2)}
                assert first.send(ben, body)["conversation"] == f"{ada}~{ben}"
                assert second.have(number + 1)[number] == body
            cursor = second.cursor
            second.cut()
            first.send(ben, "while it was cut")
            again = self.stream(client, ben, cursor=cursor)
            assert again.have(1) == ["while it was cut"]
            assert first.unbind() == (1000, "") and again.unbind() == (1000, "")

    def group(self):
        """20 members online, 50 messages: each has all of them, in order."""
        group = f"{self.prefix}-group"
        members = [f"{self.prefix}-m{number}" for number in range(20)]

        async def member(user, ready):
            async with self.session() as session:
                await self.bound(session, user)
                ready.release()
                seen = []
                while len(seen) < 50:
                    frame = await self.next(session, "messages")
                    seen += [entry["body"] for entry in frame["entries"] if entry["kind"] == "message" and entry["conversation"] == group]
                return seen

        async def run():
            ready = asyncio.Semaphore(0)
            tasks = [asyncio.create_task(member(user, ready)) for user in members]
            for _ in members:
                await asyncio.wait_for(ready.acquire(), PATIENCE_S)
            await asyncio.to_thread(send_all)
            for seen in await asyncio.gather(*tasks):
                assert seen == list(range(50)), seen

        def send_all():
            with self.client() as client:
                for number in range(50):
                    body = {"conversation": group, "from": members[0], "client_msg_id": f"g{number}", "body": number}
                    assert self.call(client, "POST", "/v1/messages", json=body).status_code == 200

        with self.client() as client:
            made = {"id": group, "kind": "group", "owner": members[0], "members": members[1:]}
            assert self.call(client, "POST", "/v1/conversations", json=made).status_code == 201
        asyncio.run(run())

    def all(self):
        for name, check in [
            ("users are made", self.users),
            ("100 sends and their page", self.sends),
            ("a chunked body", self.chunked),
            ("refusals arrive as they were said", self.refusals),
            ("an export of 1 MB is whole", self.export),
            ("WebSocket: bind, frames of all sizes, ping, unbind", self.websocket),
            ("WebSocket: a close code arrives", self.close_code),
            ("WebSocket: 20 members get 50 messages each", self.group),
            ("event stream: messages both ways, a cut, unbind", self.event_stream),
        ]:
            self.tap.case(f"{self.prefix}: {name}", check)
