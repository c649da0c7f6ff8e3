"""A hook in Python: requests verified by the package of Standard Webhooks, answers from what the messages say."""

import http.server
import json
import threading
from importlib.metadata import version

from harness.api import call, token
from harness.server import Server
from harness.tap import Tap
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDA1kBNhMJnWw="


class Hook(http.server.BaseHTTPRequestHandler):
    """Does what the text of a message says."""

    protocol_version = "HTTP/1.1"
    verified, refused, connections, status = [], [], set(), 200

    def do_POST(self):
        Hook.connections.add(self.client_address)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            questions = Webhook(SECRET).verify(body, dict(self.headers))["questions"]
        except WebhookVerificationError as error:
            Hook.refused.append(str(error))
            return self.answer(401, {})
        Hook.verified.extend(questions)
        self.answer(Hook.status, {"answers": [{"id": question["id"], **decide(question)} for question in questions]})

    def answer(self, status, answer):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def decide(question):
    match question.get("message", {}).get("body", {}).get("text"):
        case "replace":
            return {"action": "replace", "body": {"text": "naïve ≥ ☕"}}
        case "refuse":
            return {"action": "refuse", "code": "spam", "text": "Not here."}
        case "hide":
            return {"action": "hide"}
        case _:
            return {"action": "allow"}


def ask(method, path, body=None, user=None):
    key = token(user, key=server.token_key) if user else server.api_key
    status, _, answer = call(method, path, body, url=server.url, key=key)
    return status, answer


def send(text, **more):
    return ask("POST", "/v1/messages", {"conversation": "hook-room", "body": {"text": text}, **more}, user="ada")


def history(user=None):
    return ask("GET", "/v1/conversations/hook-room/messages", user=user)[1]["entries"]


def signed():
    status, sent = send("allow", client_msg_id="one")
    assert (status, sent["seq"]) == (200, 1), sent
    assert not Hook.refused and [q["user"] for q in Hook.verified] == ["ada"], (Hook.refused, Hook.verified)
    assert Hook.verified[0]["message"]["body"] == {"text": "allow"}, Hook.verified


def retried():
    asked = len(Hook.verified)
    status, sent = send("allow", client_msg_id="one")
    assert (status, sent["seq"], sent["duplicate"]) == (200, 1, True), (status, sent)
    assert len(Hook.verified) == asked, Hook.verified


def refused():
    status, problem = send("refuse")
    assert (status, problem["code"], problem["reason"], problem["detail"]) == (403, "refused_by_hook", "spam", "Not here."), problem


def replaced():
    assert send("replace")[1]["seq"] == 2
    assert history("ben")[-1]["body"] == {"text": "naïve ≥ ☕"}


def hidden():
    assert send("hide", mentions=["ben"])[1]["seq"] == 3
    of_ben, of_ada, of_app = (history(user)[-1] for user in ("ben", "ada", None))
    assert (of_ben["type"], of_ben["body"], of_ben["hidden"], "mentions" in of_ben) == ("hidden", None, True, False), of_ben
    assert (of_ada["body"], "hidden" in of_ada, of_ada["mentions"]) == ({"text": "hide"}, False, ["ben"]), of_ada
    assert (of_app["body"], of_app["hidden"]) == ({"text": "hide"}, True), of_app
    lines = ask("GET", "/v1/users/ben/conversations", user="ben")[1]["conversations"]
    assert (lines[0]["unread"], lines[0]["mentions"], lines[0]["last_message"]["seq"]) == (2, 0, 2), lines


def kept():
    assert len(Hook.connections) == 1, f"{len(Hook.connections)} connections for requests one after another"


def failing():
    Hook.status = 500
    status, problem = send("allow")
    assert (status, problem["code"], problem["retry"]) == (503, "hook_unavailable", True), problem
    assert ask("POST", "/v1/messages", {"to": "ben", "body": {"text": "allow"}}, user="ada")[0] == 200, "direct is open"
    Hook.status = 200
    assert send("allow")[0] == 200


def forged():
    url = f"http://127.0.0.1:{listener.server_port}"
    assert call("POST", "/hook", {"questions": []}, url=url, key="none")[0] == 401
    signature = {"webhook-id": "msg_1", "webhook-timestamp": "1", "webhook-signature": "v1,AAAA"}
    assert call("POST", "/hook", {"questions": []}, url=url, key="none", headers=signature)[0] == 401


listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
threading.Thread(target=listener.serve_forever, daemon=True).start()
settings = {
    "hook.url": f"http://127.0.0.1:{listener.server_port}/hook",
    "hook.secret": SECRET,
    "hook.on": "send",
    "hook.closed": "send:group",
    # A request is answered by then on a slow machine, too.
    "hook.timeout_ms": 60_000,
}
with Server(settings=settings) as server:
    tap = Tap(f"standardwebhooks {version('standardwebhooks')}")
    ask("PUT", "/v1/users", {"users": [{"id": "ada"}, {"id": "ben"}]})
    ask("POST", "/v1/conversations", {"id": "hook-room", "kind": "group", "owner": "ada", "members": ["ben"]})
    tap.case("a question comes signed, and the package verifies it", signed)
    tap.case("a retry is answered without a question", retried)
    tap.case("a refusal has the hook's code and text", refused)
    tap.case("a body is replaced", replaced)
    tap.case("a hidden message is seen by its sender and app servers alone", hidden)
    tap.case("connections are kept", kept)
    tap.case("a hook that fails is closed for groups and open for direct messages", failing)
    tap.case("what nobody has signed is refused", forged)
    tap.end()
