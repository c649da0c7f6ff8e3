"""Drives one receiver (a program in any language that verifies webhooks by its file of docs/examples/server) and a server
whose `[webhook]` points at it; the receiver tells on its standard output what it made of each call.

    drive.py <file below docs/examples/server with the receiver's verify function> <command of the receiver...>
"""

import hashlib
import hmac
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

INTEROP = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(INTEROP))

from harness.api import api  # noqa: E402
from harness.documented import is_printed  # noqa: E402
from harness.server import Server  # noqa: E402
from harness.tap import Tap  # noqa: E402

SECRET = "a secret of the webhook, naïve ≥ 16 bytes"
PATIENCE_S = 60
FAST = {"webhook.backoff_min_ms": 20, "webhook.backoff_max_ms": 100}


def check(condition, why=""):
    if not condition:
        raise AssertionError(why)


class Receiver:
    def __init__(self, command, secret):
        self.process = subprocess.Popen(
            command, env={**os.environ, "WEBHOOK_SECRET": secret}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.told = queue.Queue()
        threading.Thread(target=lambda: [self.told.put(json.loads(line)) for line in self.process.stdout], daemon=True).start()
        first = self.next(300)  # a first run may compile
        self.client, self.url = first["client"], f"http://127.0.0.1:{first['port']}"

    def next(self, patience=PATIENCE_S):
        try:
            return self.told.get(timeout=patience)
        except queue.Empty:
            raise AssertionError(f"no call came within {patience} s") from None

    def post(self, path, body, headers=None):
        request = urllib.request.Request(self.url + path, method="POST", data=body, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def plan(self, *statuses):
        check(self.post("/plan", json.dumps(statuses).encode()) == 204, "the plan was not taken")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class App:
    """The app's server: two users, of whom nobody is connected."""

    def __init__(self, server):
        self.url = server.url
        self.api("PUT", "/v1/users", {"users": [{"id": "ada", "name": "Ada"}, {"id": "ben"}, {"id": "cleo"}]})
        for name in ("house", "yard"):
            self.api("POST", "/v1/conversations", {"id": name, "kind": "group", "owner": "ada", "members": ["ben", "cleo"]})

    def api(self, method, path, body=None):
        return api(method, path, body, url=self.url)

    def send(self, number, conversation="house", body=None):
        return self.api("POST", "/v1/messages", {
            "conversation": conversation, "from": "ada", "client_msg_id": f"{number}", "body": body or {"text": f"{number}"}})["seq"]


def messages(call):
    return [event for event in call.get("events", []) if event["event"] == "message" and event["entry"]["kind"] == "message"]


def taken(receiver, conversation, count, calls=None):
    """Sequence numbers of a conversation in calls that were answered with 200, until there are `count` different ones."""
    seqs = []
    while len(set(seqs)) < count:
        call = receiver.next()
        if calls is not None:
            calls.append(call)
        if call["status"] == 200:
            seqs += [e["entry"]["seq"] for e in messages(call) if e["conversation"]["id"] == conversation]
    return seqs


def run(tap, receiver):
    with Server(settings={"webhook.url": receiver.url + "/hook", "webhook.secret": SECRET, **FAST}) as server:
        app = App(server)
        recorded = {}

        def signed():
            body = {"text": "naïve ≥ ☕ \u2028", "n": [1, 2.50, -0.0, 1e3, 12345678901234567890], "deep": {"a": {"b": None}}, "": "/\\\""}
            seq = app.send("first", body=body)
            call = receiver.next()
            check(call["status"] == 200, f"the receiver refused it: {call}")
            recorded.update(call)
            event = messages(call)[0]
            check(call["type"].split(";")[0] == "application/json", call["type"])
            check((event["entry"]["seq"], event["entry"]["from"], event["conversation"]["id"], event["conversation"]["kind"])
                  == (seq, "ada", "house", "group"), event)
            raw = json.loads(bytes.fromhex(call["body"]))["events"]
            check([e for e in raw if e["event"] == "message"][-1]["entry"]["body"] == body, raw)
            check(sorted(event["recipients"]) == ["ben", "cleo"] and event["sender"]["name"] == "Ada", event)
            check(abs(time.time() - int(call["timestamp"])) < 300, call["timestamp"])
        tap.case("a message to members who are away comes signed, and the signature holds over the bytes as they came", signed)

        def forged():
            body, stamp, signature = bytes.fromhex(recorded["body"]), recorded["timestamp"], recorded["signature"]
            own = hmac.new(SECRET.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
            check(own == signature, "the signature is not the one of the text")

            def post(data, stamp, signature):
                status = receiver.post("/hook", data, {"Tidings-Timestamp": stamp, "Tidings-Signature": signature})
                check(receiver.next()["status"] == status, "what was told is not what was answered")
                return status

            def sign(data, stamp, secret=SECRET):
                return hmac.new(secret.encode(), f"{stamp}.".encode() + data, hashlib.sha256).hexdigest()
            now = int(time.time())
            check(post(body, stamp, signature) == 200, "the call as it was recorded")
            for why, call in {
                "a byte of the body": (body.replace(b"house", b"mouse"), stamp, signature),
                "the body written anew": (json.dumps(json.loads(body), indent=1).encode(), stamp, signature),
                "a byte behind the body": (body + b"\n", stamp, signature),
                "another time": (body, str(int(stamp) + 1), signature),
                "a time that is old, signed": (body, str(now - 3600), sign(body, now - 3600)),
                "a time to come, signed": (body, str(now + 3600), sign(body, now + 3600)),
                "no time": (body, "", sign(body, "")),
                "a time that is no number": (body, "now", sign(body, "now")),
                "no signature": (body, stamp, ""),
                "half a signature": (body, stamp, signature[:32]),
                "a signature of more": (body, stamp, signature + "00"),
                "another secret": (body, stamp, sign(body, stamp, "another secret of the webhook")),
                "an empty secret": (body, stamp, sign(body, stamp, "")),
            }.items():
                check(post(*call) == 401, f"taken with {why} changed")
        tap.case("what was changed, is old or signed by others is refused", forged)

        def retried():
            receiver.plan(500, 503, 302, 404)
            seq = app.send("retried")
            calls = [receiver.next() for _ in range(5)]
            check([c["status"] for c in calls] == [500, 503, 302, 404, 200], [c["status"] for c in calls])
            ids = {tuple(e["id"] for e in messages(c)) for c in calls}
            check(len(ids) == 1 and len(next(iter(ids))) == 1, f"ids {ids}")
            check(all(messages(c)[0]["entry"]["seq"] == seq for c in calls), "another message")
        tap.case("a call that failed (500, 503, a redirect, 404) comes again, signed, with the event's id", retried)

        def ordered():
            receiver.plan(*[500, 200] * 20)
            calls = []
            wanted = [app.send(f"o{i}") for i in range(40)]
            seqs = taken(receiver, "house", 40, calls)
            receiver.plan()
            check(seqs == wanted, f"{seqs}, not {wanted}")
            check(500 in [call["status"] for call in calls], "no call failed")
        tap.case("40 messages of a conversation come in order, though calls fail between", ordered)

        def interleaved():
            wanted = {"house": [], "yard": []}
            for i in range(20):
                for name, seqs in wanted.items():
                    seqs.append(app.send(f"i{name}{i}", name))
            got = {"house": [], "yard": []}
            while any(len(set(seqs)) < 20 for seqs in got.values()):
                call = receiver.next()
                check(call["status"] == 200, call)
                for event in messages(call):
                    got[event["conversation"]["id"]].append(event["entry"]["seq"])
            check(got == wanted, f"{got}, not {wanted}")
        tap.case("two conversations at once: each in its order", interleaved)

        def not_told():
            app.api("POST", "/v1/messages", {"conversation": "house", "from": "ada", "client_msg_id": "s", "body": {}, "silent": True})
            app.api("POST", "/v1/messages", {"conversation": "house", "from": "ada", "client_msg_id": "p", "body": {}, "skip_push": True})
            last = app.send("last")
            seqs = taken(receiver, "house", 1)
            check(seqs == [last], f"{seqs}, not {[last]}")
        tap.case("silent messages and those with skip_push are not told", not_told)

    settings = {"webhook.url": receiver.url + "/hook", "webhook.secret": "a secret that the receiver does not have", "webhook.attempts_max": 4,
                # Long enough that attempts differ in the second that they are signed with.
                "webhook.backoff_min_ms": 1000, "webhook.backoff_max_ms": 1500}
    with Server(settings=settings) as server:
        app = App(server)

        def wrong_secret():
            app.send("wrong")
            calls = [receiver.next() for _ in range(4)]
            check([call["status"] for call in calls] == [401] * 4, "a call with a wrong secret was taken")
            stamps = [int(call["timestamp"]) for call in calls]
            check(stamps == sorted(stamps) and stamps[0] < stamps[-1], f"attempts are not signed anew: {stamps}")
            end = time.monotonic() + PATIENCE_S
            while not (dead := app.api("GET", "/v1/notifications/dead-letters?channel=webhook")["dead_letters"]):
                check(time.monotonic() < end, "no dead letter after as many attempts as there may be")
                time.sleep(0.05)
            check(len(dead) == 1, dead)
        tap.case("a server with another secret is refused at each attempt, each signed anew; its event becomes a dead letter", wrong_secret)


def main():
    file, command = sys.argv[1], sys.argv[2:]
    with Receiver(command, SECRET) as receiver:
        tap = Tap(receiver.client)
        run(tap, receiver)
    tap.case("the verify function is the one that docs/server-helpers.md prints", lambda: is_printed(file))
    tap.end()


if __name__ == "__main__":
    main()
