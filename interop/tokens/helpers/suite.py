"""Tokens by the functions that docs/server-helpers.md prints, on the server: each program prints one token."""

import asyncio
import json
import os
import subprocess
import uuid

import websockets

from harness.api import api, call
from harness.documented import is_printed
from harness.tap import Tap

SCRATCH = os.environ["INTEROP_TMP"]
KEY = os.environ["TIDINGS_TOKEN_KEY"]
PATIENCE_S = 60
OTHER_KEY = "a key of somebody else, long enough for the algorithm"

LANGUAGES = {
    "Node": ("node/sign-token.mjs", ["node", "sign.mjs"]),
    "Python": ("python/sign_token.py", [os.environ["INTEROP_PYTHON"], "sign.py"]),
    "Go": ("go/sign_token.go", [f"{SCRATCH}/sign"]),
    "Java": ("java/SignToken.java", ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", SCRATCH, "Sign"]),
}


def signed(command, user, seconds=600, key=KEY):
    arguments = [key, user, str(seconds)]
    made = subprocess.run([*command, *arguments], input="\n".join(arguments), capture_output=True, text=True, encoding="utf-8")
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def reads(command, user):
    status, _, me = call("GET", "/v1/users/me", key=signed(command, user))
    assert (status, (me or {}).get("id")) == (200, user), f"{status} {me}"


def refused(token, code):
    status, _, answer = call("GET", "/v1/users/me", key=token)
    assert (status, (answer or {}).get("code")) == (401, code), f"{status} {answer}"


async def binds(token, user):
    async with websockets.connect(os.environ["TIDINGS_WS"]) as socket:
        await socket.send(json.dumps({"t": "bind", "token": token, "device_id": "helper"}))
        frame = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE_S))
    assert (frame["t"], frame.get("user")) == ("bound", user), frame


def main():
    tap = Tap("Node, Python, Go and Java, their standard libraries")
    for language, (file, command) in LANGUAGES.items():
        # What ids may hold and JSON has to escape, or what is more than one byte.
        plain, odd = f"helper-{uuid.uuid4().hex[:8]}", f"o'\"\\{uuid.uuid4().hex[:8]}-zoë-☕"
        api("PUT", "/v1/users", {"users": [{"id": plain}, {"id": odd}]})
        tap.case(f"{language}: a token reads the API", lambda: reads(command, plain))
        tap.case(f"{language}: a token of a user whose id has quotes, a backslash and letters of more bytes", lambda: reads(command, odd))
        tap.case(f"{language}: a token opens a session", lambda: asyncio.run(binds(signed(command, plain), plain)))
        tap.case(f"{language}: a token that has expired is refused", lambda: refused(signed(command, plain, seconds=-60), "token_expired"))
        tap.case(f"{language}: a token of another key is refused", lambda: refused(signed(command, plain, key=OTHER_KEY), "unauthorized"))
        tap.case(f"{language}: the function is the one that docs/server-helpers.md prints", lambda: is_printed(file))
    tap.end()


main()
