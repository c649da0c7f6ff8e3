"""Tokens that a library of another language made, judged by a server of its own.

The library's program is asked twice, each time for new keys, and answers with JSON:

    {"library": "PyJWT 2.10.1",
     "jwks": {"keys": [...]},
     "tokens": [{"name": "RS256", "token": "...", "takes": true}, {"name": "expired", "token": "...", "code": "token_expired"}]}

Its keys are published by URL; tokens for `USER` with audience `AUDIENCE` and issuer `ISSUER` are taken, over HTTP and on a
WebSocket, and those with something wrong are refused with the code that stands beside them (default `unauthorized`).
"""

import asyncio
import http.server
import json
import threading
import time

import websockets

from harness.api import call
from harness.server import TOKEN_KEY, Server
from harness.tap import Tap

USER, AUDIENCE, ISSUER = "tokens-ada", "tidings", "https://id.example"
PATIENCE = 60


class KeyServer:
    """Serves a key set, and says how often it was asked; without one it answers 503."""

    def __init__(self):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked += 1
                body = json.dumps(outer.keys).encode() if outer.keys else b"away"
                self.send_response(200 if outer.keys else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.keys, self.asked = None, 0
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys"


def verdict(server, token):
    """Status and code that a token is answered with; one whose key is being fetched is brought again, as told."""
    end = time.monotonic() + PATIENCE
    while True:
        status, headers, answer = call("GET", "/v1/users/me", url=server.url, key=token)
        if status != 503 or time.monotonic() > end:
            return status, (answer or {}).get("code", "")
        time.sleep(min(1, int(headers.get("Retry-After", "1"))))


async def bind(server, token):
    """The first frame that a bind is answered with."""
    async with websockets.connect(server.ws) as socket:
        await socket.send(json.dumps({"t": "bind", "token": token, "device_id": "tokens"}))
        return json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))


def check_taken(server, token):
    status, code = verdict(server, token)
    assert status == 200, f"answered with {status} {code}"
    frame = asyncio.run(bind(server, token))
    assert frame["t"] == "bound" and frame["user"] == USER, frame


def check_refused(server, token, code):
    status, refused = verdict(server, token)
    assert (status, refused) == (401, code), f"answered with {status} {refused}, not 401 {code}"
    frame = asyncio.run(bind(server, token))
    assert frame["t"] == "error" and frame["code"] == code, frame


def check(server, token):
    if token.get("takes"):
        check_taken(server, token["token"])
    else:
        check_refused(server, token["token"], token.get("code", "unauthorized"))


def eventually(what, holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.2)


def run(make):
    """`make(secret)` is the library's answer."""
    keys, first = KeyServer(), make(TOKEN_KEY)
    tap = Tap(first["library"])
    settings = {
        "tokens.jwks_url": keys.url,
        "tokens.audience": AUDIENCE,
        "tokens.issuer": ISSUER,
        # So many bad tokens of one address are what this is about.
        "limits.failures_per_minute": 0,
    }
    with Server(settings) as server:
        status, _, _ = call("PUT", "/v1/users", {"users": [{"id": USER}]}, url=server.url, key=server.api_key)
        assert status == 200, status
        signed = [token for token in first["tokens"] if token.get("takes")]
        by_key = next(token["token"] for token in signed if token["name"].startswith("EdDSA"))

        def away():
            status, _, answer = call("GET", "/v1/users/me", url=server.url, key=by_key)
            assert status in (401, 503), f"{status} {answer}"

        tap.case("no key is known before the address has answered once", away)
        keys.keys = first["jwks"]
        tap.case("the keys come when the address answers", lambda: eventually("a token is taken", lambda: verdict(server, by_key)[0] == 200))
        for token in first["tokens"]:
            tap.case(token["name"], lambda token=token: check(server, token))

        def others():
            second = make(TOKEN_KEY)
            keys.keys = second["jwks"]
            for token in second["tokens"]:
                if token.get("takes") and not token["name"].startswith("HS256"):
                    eventually(f"{token['name']} of a new key", lambda: verdict(server, token["token"])[0] == 200)
            # What is not published any more is no key of ours.
            check_refused(server, by_key, "unauthorized")
            return second

        second = tap.case("keys that are replaced are fetched for the first token that names one", others)
        keys.keys = None

        def kept():
            asked = keys.asked
            unknown = first["tokens"]
            for token in unknown:
                verdict(server, token["token"])
            for token in second["tokens"]:
                if token.get("takes"):
                    check_taken(server, token["token"])
            assert keys.asked - asked <= 1 + PATIENCE // 10, f"the address was asked {keys.asked - asked} times"

        tap.case("the last keys stay good while the address is away", kept)
    tap.end()
