"""Tokens and calls of the app's server, for what a suite needs before it comes to its subject."""

import json
import os
import time
import urllib.error
import urllib.request

import jwt


def token(user, seconds=3600, key=None, **claims):
    """A token of a user, signed with HS256 by PyJWT."""
    now = int(time.time())
    payload = {"sub": user, "iat": now, "exp": now + seconds, **claims}
    return jwt.encode(payload, key or os.environ["TIDINGS_TOKEN_KEY"], algorithm="HS256")


def call(method, path, body=None, url=None, key=None, headers=None):
    """Status, headers and JSON (or None) of a call with the API key, or with `key`."""
    request = urllib.request.Request(
        (url or os.environ["TIDINGS_URL"]) + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {key or os.environ['TIDINGS_API_KEY']}",
            **({} if body is None else {"Content-Type": "application/json"}),
            **(headers or {}),
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, answered, text = answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        status, answered, text = error.code, error.headers, error.read()
    is_json = "json" in answered.get("Content-Type", "")
    return status, answered, json.loads(text) if text and is_json else None


def api(method, path, body=None, **options):
    """The JSON that a call is answered with; raises when it is refused."""
    status, _, answer = call(method, path, body, **options)
    if status >= 300:
        raise AssertionError(f"{method} {path} was answered with {status}: {answer}")
    return answer
