"""An export of all that there is of a user, read by Python's zipfile: the archive is sound, its index counts what is in it, and it has what
the user wrote and nothing of others. Written from docs/erasure.md and what the archive says of itself."""

import io
import json
import time
import urllib.error
import urllib.request
import zipfile

from harness.server import Server
from harness.tap import Tap


def ask(server, method, path, body=None):
    headers = {"Authorization": f"Bearer {server.api_key}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, method=method, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def done(server, method, path, body=None):
    status, text = ask(server, method, path, body)
    assert status < 300, f"{method} {path}: {status} {text}"
    return text


def people(server):
    done(server, "PUT", "/v1/users", {"users": [{"id": "ada", "name": "Ada"}, {"id": "ben"}]})
    done(server, "POST", "/v1/conversations", {"id": "house-7", "kind": "group", "owner": "ben", "members": ["ada"]})
    for number in range(120):
        sender = ("ada", "ben")[number % 2]
        done(server, "POST", "/v1/messages", {"conversation": "house-7", "from": sender, "body": {"text": f"{sender} says {number}"}})
    done(server, "PUT", "/v1/conversations/house-7/messages/2/reactions/+?user=ada")
    done(server, "PUT", "/v1/users/ada/blocks/ben")


def read(archive):
    opened = zipfile.ZipFile(io.BytesIO(archive))
    assert opened.testzip() is None
    return {name: opened.read(name).decode() for name in opened.namelist()}


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def archives():
    with Server() as server:
        people(server)
        files = read(done(server, "GET", "/v1/users/ada/export"))
        assert list(files)[0] == "README.txt" and list(files)[-1] == "index.json", list(files)
        index = json.loads(files["index.json"])
        assert {one["file"] for one in index["files"]} | {"README.txt", "index.json"} == set(files), index
        for one in index["files"]:
            assert len(lines(files[one["file"]])) == one["records"], one
            assert one["file"] in files["README.txt"] and one["what"] in files["README.txt"], one
        bodies = [one["body"]["text"] for one in lines(files["messages.ndjson"]) if one["kind"] == "message"]
        assert bodies == [f"ada says {number}" for number in range(0, 120, 2)], bodies
        assert lines(files["reactions.ndjson"]) == [{"conversation": "house-7", "seq": 2, "reactions": ["+"]}]
        assert lines(files["blocks.ndjson"]) == [{"user": "ben"}]
        assert not any("ben says" in text for text in files.values())
        received = lines(read(done(server, "GET", "/v1/users/ada/export?received=true"))["received.ndjson"])
        assert sum(one["kind"] == "message" for one in received) == 60, len(received)


def gone():
    with Server() as server:
        people(server)
        assert ask(server, "GET", "/v1/users/nobody/export")[0] == 404
        done(server, "DELETE", "/v1/users/ada")
        status = ask(server, "GET", "/v1/users/ada/export")[0]
        assert status in (404, 409), status
        deadline = time.monotonic() + 60
        while json.loads(done(server, "GET", "/v1/erasures/ada"))["state"] != "done":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert ask(server, "GET", "/v1/users/ada/export")[0] == 404


tap = Tap("Python's zipfile")
tap.case("an archive is sound, and has what its index says", archives)
tap.case("there is none of a user who is erased or unknown", gone)
tap.end()
