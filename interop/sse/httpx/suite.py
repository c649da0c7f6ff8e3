"""Sessions over server-sent events by a client that was written from docs/sse.md, on httpx and httpx-sse."""

import os
import re
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import httpx
from harness.api import api, token
from harness.event_stream import EventStream
from harness.server import Server
from harness.tap import Tap

PATIENCE_S = 120
PAGE = (Path(os.environ["INTEROP"]).parent / "docs/sse.md").read_text()
ADA, BEN, CY = USERS = [f"httpxsse-{name}" for name in ("ada", "ben", "cy")]
client = httpx.Client(base_url=os.environ["TIDINGS_URL"], timeout=PATIENCE_S)


def opened(user, device="d", **bind):
    return EventStream(client, token(user), device, **bind).begin()


def say(text, to=BEN, sender=ADA):
    api("POST", "/v1/messages", {"from": sender, "to": to, "body": text})


def both_ways():
    ada, ben = opened(ADA), opened(BEN)
    receipt = ada.send(BEN, {"text": "hello\r\nyou"})
    assert ben.have(1) == [{"text": "hello\r\nyou"}] and ben.entries[0]["seq"] == receipt["seq"]
    ben.send(ADA, "hello yourself")
    assert ada.have(2)[1] == "hello yourself"
    assert ada.unbind() == (1000, "") and ben.unbind() == (1000, "")


def a_pretty_body_is_one_event():
    """White space in a body is not the event's."""
    ada, ben = opened(ADA), opened(BEN)
    ada.number += 1
    text = '{"from":"%s","to":"%s","body":{"a":\n[1,\r\n2],\t"b":"\\n"}}' % (ADA, BEN)
    headers = {"Authorization": f"Bearer {os.environ['TIDINGS_API_KEY']}", "Content-Type": "application/json"}
    assert client.post("/v1/messages", content=text, headers=headers).status_code == 200
    assert ben.have(1) == [{"a": [1, 2], "b": "\n"}]
    ada.cut(), ben.cut()


def a_cut_is_resumed():
    ben = opened(BEN)
    say("before")
    assert ben.have(1) == ["before"]
    ben.cut()
    say("meanwhile")
    again = opened(BEN, cursor=ben.cursor)
    assert again.have(1) == ["meanwhile"]
    # As the standard has it: the last id in a header.
    last = opened(BEN, last_event_id=ben.cursor)
    assert last.have(1) == ["meanwhile"]
    assert again.ends() == (4003, "replaced")
    last.cut()


def the_largest_body():
    ada, ben = opened(ADA), opened(BEN)
    text = "ä" * (32 * 1024 - 1)
    ada.send(BEN, text)
    assert ben.have(1) == [text]
    assert ada.post({"t": "ping", "x": "y" * 192 * 1024}, number=2).status_code == 413
    ada.cut(), ben.cut()


def a_lost_answer():
    ada, ben = opened(ADA), opened(BEN)
    frame = {"t": "send", "to": BEN, "body": "once"}
    for _ in range(3):
        assert ada.post(frame, number=1).json() == {"taken": 1}
    assert ada.post(frame, number=3).json()["code"] == "conflict"
    assert ada.post({**frame, "body": "twice"}, number=2).json() == {"taken": 2}
    assert ben.have(2) == ["once", "twice"]
    ada.cut(), ben.cut()


def refusals():
    def ask(credential, bind):
        answer = client.get("/v1/stream", params=bind, headers={"Authorization": f"Bearer {credential}"})
        return answer.status_code, answer.json()["code"]

    assert ask("nobody's", {"device_id": "d"}) == (401, "unauthorized")
    assert ask(os.environ["TIDINGS_API_KEY"], {"device_id": "d"}) == (403, "forbidden")
    assert ask(token("httpxsse-nobody"), {"device_id": "d"}) == (404, "not_found")
    assert ask(token(ADA), {}) == (422, "invalid_field")
    assert ask(token(ADA, seconds=-600), {"device_id": "d"}) == (401, "token_expired")
    assert EventStream(client, token(ADA), "d", cursor="none").ends() == (4014, "cursor_invalid")
    ada, ben = opened(ADA), opened(BEN)
    for secret in [token(ADA), token(BEN), ben.opened["secret"]]:
        answer = ada.post({"t": "ping"}, number=1, secret=secret)
        assert (answer.status_code, answer.json()["code"]) == (410, "session_gone"), answer.text
    assert ada.unbind() == (1000, "")
    assert ada.post({"t": "ping"}).status_code == 410
    ben.cut()


def kept_open_and_let_go():
    """Comments come while nothing else does; a client that says nothing is let go."""
    settings = {"session.keep_alive_ms": 200, "session.heartbeat_ms": 2_000}
    with Server(settings) as server, httpx.Client(base_url=server.url, timeout=PATIENCE_S) as other:
        api("PUT", "/v1/users", {"users": [{"id": ADA}]}, url=server.url)
        headers = {"Authorization": f"Bearer {token(ADA)}"}
        with other.stream("GET", "/v1/stream", params={"device_id": "d"}, headers=headers) as answer:
            text = "".join(answer.iter_text())
    assert text.count(":\n\n") >= 3, text
    assert text.endswith('event: close\ndata: {"code":4007,"reason":"heartbeat_timeout"}\n\n'), text


def a_drained_server_says_so():
    with Server() as server, httpx.Client(base_url=server.url, timeout=PATIENCE_S) as other:
        api("PUT", "/v1/users", {"users": [{"id": ADA}]}, url=server.url)
        stream = EventStream(other, token(ADA), "d").begin()
        server.process.terminate()
        assert stream.next("reconnect")["after_ms"] >= 0
        assert stream.ends() == (4009, "draining")


def examples():
    """The commands of the page, as pasted."""
    commands = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    assert len(commands) == 2, commands
    base = {**os.environ, "URL": os.environ["TIDINGS_URL"]}
    api("PUT", "/v1/users", {"users": [{"id": "ben"}]})
    stream = subprocess.Popen(["sh", "-c", "exec " + commands[0]], env={**base, "TOKEN": token(CY)}, stdout=subprocess.PIPE, text=True)
    try:
        def line_with(text):
            end = time.monotonic() + PATIENCE_S
            while time.monotonic() < end:
                line = stream.stdout.readline()
                if text in line:
                    return line
            raise AssertionError(f"no {text!r}")

        said = line_with('"stream":')
        found = {name: re.search(f'"{name}":"([^"]+)"', said)[1] for name in ("stream", "secret")}
        line_with('"t":"bound"')
        environment = {**base, "STREAM": found["stream"], "SECRET": found["secret"]}
        answer = subprocess.run(["sh", "-c", commands[1]], env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        assert answer.stdout == '{"taken":1}' and f"# 202 {answer.stdout}" in commands[1], answer
        assert '"ref":1' in line_with('"t":"sent"')
    finally:
        stream.kill()
        stream.wait()


def counted():
    ada = opened(ADA)
    text = client.get("/metrics").text
    assert re.search(r'^tidings_sessions_by_protocol\{protocol="event_stream"\} [1-9]', text, re.M), "not counted"
    ada.cut()


tap = Tap(f"httpx {version('httpx')}, httpx-sse {version('httpx-sse')}")
api("PUT", "/v1/users", {"users": [{"id": user} for user in USERS]})
for name, check in [
    ("bind, send, receive, unbind", both_ways),
    ("a body with line ends between its values", a_pretty_body_is_one_event),
    ("a cut stream resumes, by cursor and by Last-Event-ID", a_cut_is_resumed),
    ("a body of 64 KiB; a frame above the limit", the_largest_body),
    ("a request whose answer was lost counts once", a_lost_answer),
    ("refusals", refusals),
    ("comments on a quiet stream; a silent client", kept_open_and_let_go),
    ("a server that stops", a_drained_server_says_so),
    ("the examples of docs/sse.md", examples),
    ("sessions are counted by protocol", counted),
]:
    tap.case(name, check)
tap.end()
