"""The feed of events, read by the SDK of CloudEvents for Python: pages, and the stream by httpx, on which a bot answers."""

import json
import threading
from importlib.metadata import version

import httpx
from cloudevents.core.formats.json import JSONFormat
from harness.api import api
from harness.server import Server
from harness.tap import Tap

# Whatever must happen has happened by then, on a slow machine too.
PATIENCE = 60


def ask(method, path, body=None):
    return api(method, path, body, url=server.url, key=server.api_key)


def say(user, text, **more):
    return ask("POST", "/v1/messages", {"conversation": "events-room", "from": user, "body": {"text": text}, **more})


def read(event):
    """What the SDK makes of an event: it raises when a required attribute is missing, or is not as the standard has it."""
    return JSONFormat().read(None, json.dumps(event))


def follow(query, limit=3):
    """All events there are, page by page."""
    after, events = "", []
    while True:
        page = ask("GET", f"/v1/events?limit={limit}&{query}{after}")
        events += page["events"]
        if not page["more"]:
            return events, page["next"]
        after = f"&after={page['next']}"


def standard():
    events, _ = follow("types=entry.,members,user,read,conversation")
    assert {"entry.message", "entry.edit", "entry.recall", "members", "user", "read"} <= {event["type"] for event in events}, events
    seen = set()
    for event in events:
        one = read(event)
        assert one.get_specversion() == "1.0" and one.get_type() == event["type"], event
        assert one.get_extension("cursor") == event["cursor"], event
        assert (one.get_source(), one.get_id()) not in seen, "source and id name one event"
        seen.add((one.get_source(), one.get_id()))
        if one.get_type().startswith("entry."):
            assert round(one.get_time().timestamp() * 1000) == one.get_data()["at"], event


def recalled():
    events, _ = follow("types=entry.")
    texts = json.dumps([event["data"] for event in events])
    assert "edited once" in texts and "a secret" not in texts, "what was recalled is in no event"


def bot():
    """Answers each message of others, by the stream, from where it began."""
    _, cursor = follow("types=entry.message")
    answered, ready = [], threading.Event()

    def run():
        headers = {"Authorization": f"Bearer {server.api_key}"}
        url = f"{server.url}/v1/events/stream?types=entry.message&after={cursor}"
        with httpx.stream("GET", url, headers=headers, timeout=PATIENCE) as lines:
            assert lines.headers["content-type"] == "application/x-ndjson"
            ready.set()
            for line in lines.iter_lines():
                data = JSONFormat().read(None, line).get_data()
                if data["from"] == "events-bot":
                    answered.append(data["body"]["text"])
                    if len(answered) == 3:
                        return
                else:
                    say("events-bot", f"you said {data['body']['text']}", client_msg_id=f"answer-{data['seq']}")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE), "the stream begins"
    for text in ("one", "two", "three"):
        say("events-ada", text)
    thread.join(PATIENCE)
    assert answered == ["you said one", "you said two", "you said three"], answered


def stopped():
    """A server that stops ends the stream at once, and the reader goes on with the next one."""
    _, cursor = follow("types=entry.message")
    headers = {"Authorization": f"Bearer {server.api_key}"}
    with httpx.stream("GET", f"{server.url}/v1/events/stream?after={cursor}", headers=headers, timeout=PATIENCE) as lines:
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert list(lines.iter_lines()) == []
        stopping.join(PATIENCE)
    server.start()
    say("events-ada", "after the stop")
    events = ask("GET", f"/v1/events?types=entry.message&after={cursor}")["events"]
    assert [event["data"]["body"]["text"] for event in events] == ["after the stop"], events


tap = Tap(f"cloudevents {version('cloudevents')}, httpx {version('httpx')}")
with Server(settings={"events.keep_days": 1}) as server:
    ask("PUT", "/v1/users", {"users": [{"id": f"events-{name}"} for name in ("ada", "ben", "bot")]})
    members = ["events-ada", "events-ben", "events-bot"]
    ask("POST", "/v1/conversations", {"kind": "group", "id": "events-room", "members": members})
    edited, secret = say("events-ada", "first"), say("events-ada", "a secret")
    path = "/v1/conversations/events-room/messages"
    ask("PATCH", f"{path}/{edited['seq']}", {"body": {"text": "edited once"}})
    ask("DELETE", f"{path}/{secret['seq']}")
    ask("PUT", "/v1/users/events-ben/conversations/events-room/read", {"seq": secret["seq"]})
    tap.case("every event is one of CloudEvents 1.0", standard)
    tap.case("a recall holds for the feed", recalled)
    tap.case("a bot answers by the stream", bot)
    tap.case("a stream ends with its server, and goes on with the next", stopped)
tap.end()
