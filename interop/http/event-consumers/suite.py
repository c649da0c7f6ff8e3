"""Consumers of events: the examples of docs/examples/events, and a webhook that verifies calls by the Standard Webhooks library."""

import base64
import json
import random
import secrets
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import httpx
import pg8000.dbapi
from harness.api import api
from harness.postgres import Postgres
from harness.server import Server
from harness.tap import Tap
from standardwebhooks import Webhook

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "docs" / "examples" / "events"))
import into_meilisearch  # noqa: E402
import into_postgres  # noqa: E402

# Whatever must happen has happened by then, on a slow machine too.
PATIENCE = 120
ROOMS = [f"consumer-room-{number}" for number in range(4)]
USERS = [f"consumer-{name}" for name in ("ada", "ben", "cleo")]
dice = random.Random(4)


def ask(method, path, body=None):
    return api(method, path, body, url=server.url, key=server.api_key)


def until(what, check):
    end = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def live(count):
    """Some life in the rooms: messages, edits, recalls, a member who comes and goes, names."""
    for number in range(count):
        room, user = dice.choice(ROOMS), dice.choice(USERS[:2])
        path = f"/v1/conversations/{room}/messages"
        sent = ask("POST", "/v1/messages", {"conversation": room, "from": user, "body": {"text": f"{user} says {dice.random()}"}})
        match dice.randrange(8):
            case 0:
                ask("PATCH", f"{path}/{sent['seq']}", {"body": {"text": f"edited {number}"}})
            case 1:
                ask("DELETE", f"{path}/{sent['seq']}")
            case 2:
                ask("POST", f"/v1/conversations/{room}/members", {"remove": [USERS[2]]} if number % 2 else {"add": [USERS[2]]})
            case 3:
                ask("PUT", "/v1/users", {"users": [{"id": user, "name": f"{user} {number}"}]})
            case 4:
                ask("PUT", f"/v1/users/{USERS[0]}/conversations/{room}/read", {"seq": sent["seq"]})


def messages():
    """All messages as the API shows them: text by room and number, None when it is recalled."""
    found = {}
    for room in ROOMS:
        from_seq = 1
        while True:
            page = ask("GET", f"/v1/conversations/{room}/messages?from_seq={from_seq}&limit=200")
            for entry in page["entries"]:
                if entry["kind"] == "message":
                    found[room, entry["seq"]] = (entry.get("body") or {}).get("text")
            if not page["entries"]:
                break
            from_seq = page["entries"][-1]["seq"] + 1
    return found


class Meilisearch:
    """A double of the two operations of its API that the example uses, as its reference describes them: documents that are put
    replace those with the same id, and a task is answered."""

    def __init__(self):
        self.documents, self.lock = {}, threading.Lock()
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_call(self):
                given = json.loads(self.rfile.read(int(self.headers["content-length"])))
                path = self.path.partition("?")[0]
                with double.lock:
                    if (self.command, path) == ("PUT", "/indexes/messages/documents"):
                        double.documents.update({document["id"]: document for document in given})
                    elif (self.command, path) == ("POST", "/indexes/messages/documents/delete-batch"):
                        for key in given:
                            double.documents.pop(key, None)
                    else:
                        self.send_error(404)
                        return
                answer = json.dumps({"taskUid": 1, "indexUid": "messages", "status": "enqueued"}).encode()
                self.send_response(202)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_PUT = do_POST = handle_call

            def log_message(self, *_):
                pass

        self.url = serve(Handler)


def a_secret():
    return f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"


def serve(handler):
    listener = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{listener.server_address[1]}"


def tables():
    """Copies into PostgreSQL, from the start, with a copier that stops in the middle, and a server that is killed."""
    with Postgres() as postgres:
        headers = {"Authorization": f"Bearer {server.api_key}"}

        def copy(stop):
            database = pg8000.dbapi.connect(postgres.user, unix_sock=postgres.socket, database="postgres")
            with httpx.Client(base_url=server.url, headers=headers) as http:
                into_postgres.follow(http, database, stop)
            database.close()

        live(40)
        pages = iter(range(1_000))
        copy(lambda caught_up: next(pages) == 0)
        live(20)
        server.kill()
        server.start()
        live(20)
        copy(lambda caught_up: caught_up)
        database = pg8000.dbapi.connect(postgres.user, unix_sock=postgres.socket, database="postgres")
        rows = database.cursor()
        rows.execute("SELECT conversation, seq, body FROM messages")
        copied = {(room, seq): (body or {}).get("text") for room, seq, body in rows.fetchall()}
        assert copied == messages(), "the table is what the API shows"
        rows.execute("SELECT conversation, member, role FROM members")
        members = {(room, member["user"], member["role"]) for room in ROOMS for member in ask("GET", f"/v1/conversations/{room}/members")["members"]}
        assert {tuple(row) for row in rows.fetchall()} == members
        rows.execute("SELECT id, name FROM profiles")
        for user, name in rows.fetchall():
            assert ask("GET", f"/v1/users/{user}").get("name") == name, user
        database.close()


def search():
    """A search index by webhook, from the start, over a server that is killed."""
    meili = Meilisearch()
    client = httpx.Client(base_url=meili.url)
    secret = a_secret()
    url = serve(into_meilisearch.receiver(secret, client))
    types = ["entry.message", "entry.edit", "entry.recall"]
    made = ask("PUT", "/v1/event-consumers/search", {"types": types, "after": "start", "webhook": {"url": url, "secret": secret}})
    assert "secret" not in made, "the caller knows it"
    live(40)
    server.kill()
    server.start()
    live(40)

    def is_equal():
        wanted = {into_meilisearch.document_id(room, seq): text for (room, seq), text in messages().items() if text is not None}
        with meili.lock:
            return {key: document["text"] for key, document in meili.documents.items()} == wanted

    until("the index is what the API shows", is_equal)
    shown = ask("GET", "/v1/event-consumers/search")
    assert shown["state"] == "running" and shown["aside"] == 0, shown


def order():
    """Fails one call in four; what is taken of each conversation is taken in order, and a call with a wrong secret is noticed."""
    taken, calls, lock = [], [], threading.Lock()
    secret = a_secret()
    verify = Webhook(secret)

    class Receiver(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            events = verify.verify(body, dict(self.headers))
            assert self.headers["content-type"] == "application/cloudevents-batch+json"
            with lock:
                calls.append(self.headers["webhook-id"])
                fails = dice.randrange(4) == 0
                if not fails:
                    taken.extend(events)
            self.send_response(500 if fails else 200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    webhook = {"url": serve(Receiver), "secret": secret, "batch": 5}
    ask("PUT", "/v1/event-consumers/order", {"types": ["entry.message"], "after": "now", "webhook": webhook})
    before = len(messages())
    live(60)
    until("all are taken", lambda: len({event["id"] for event in list(taken)}) == 60)
    assert len(messages()) - before == 60
    last = {}
    for event in taken:
        room, seq = event["subject"], event["data"]["seq"]
        assert seq > last.get(room, 0), f"{room}: {seq} after {last.get(room)}"
        last[room] = seq
    metrics = httpx.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.api_key}"}).text
    assert 'tidings_event_consumer_delivered_total{consumer="order"} 60' in metrics, metrics
    ask("DELETE", "/v1/event-consumers/order")


def outside():
    """What is no commit of chat, but was accepted before a kill: pushes, and what was reported of popups. And exposures."""
    ask("PUT", "/v1/popups/hello", {"state": "live", "placements": ["home"], "strict": True, "variants": [{"id": "a", "content": {}}]})
    pushes, reported, shown = [], [], []
    for number in range(30):
        push = ask("POST", "/v1/push", {"to": {"users": [USERS[0]]}, "type": "offer", "body": number, "client_push_id": f"push-{number}"})
        pushes.append(push["push"])
        event = {"id": f"report-{number}", "type": "custom", "user": USERS[0], "name": "bought", "properties": {"number": number}}
        ask("POST", "/v1/popup-events", {"events": [event]})
        reported.append(event["id"])
        user = f"visitor-{number}"
        shown.append((user, ask("POST", "/v1/popups/decide", {"user": user, "placement": "home"})["popup"]))
        if number in (10, 29):
            server.kill()
            server.start()
    found = {}

    def read():
        after = "1970-01-01T00:00:00Z"
        while True:
            page = ask("GET", f"/v1/events?types=push,popup.&after={after}&limit=7")
            for event in page["events"]:
                found.setdefault(event["type"], {})[event["id"]] = event["data"]
            if not page["more"]:
                return
            after = page["next"]

    def is_whole():
        read()
        return len(found.get("popup.event", {})) == 30 and len(found.get("popup.exposure", {})) == 30 and len(found.get("push", {})) >= 30

    until("all are in the feed", is_whole)
    assert {push["push"] for push in found["push"].values()} == set(pushes)
    assert {push["client_push_id"] for push in found["push"].values()} == {f"push-{number}" for number in range(30)}
    assert sorted(event["id"] for event in found["popup.event"].values()) == sorted(reported)
    assert all(event["id"] == f"report-{event['properties']['number']}" for event in found["popup.event"].values())
    assert sorted((event["user"], event["popup"]) for event in found["popup.exposure"].values()) == sorted(shown)


tap = Tap(f"standardwebhooks {version('standardwebhooks')}, pg8000 {version('pg8000')}")
with Server(settings={"events.keep_days": 1, "events.also": "push,popup."}) as server:
    ask("PUT", "/v1/users", {"users": [{"id": user} for user in USERS]})
    for room in ROOMS:
        ask("POST", "/v1/conversations", {"kind": "group", "id": room, "members": USERS})
    tap.case("a copy in PostgreSQL is what the API shows", tables)
    tap.case("an index by webhook is what the API shows", search)
    tap.case("a webhook gets the events of a conversation in their order", order)
    tap.case("pushes and popups are in the feed, whatever the server was killed by", outside)
tap.end()
