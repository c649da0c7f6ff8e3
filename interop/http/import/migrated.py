#!/usr/bin/env python3
"""The messages of an IRC channel in a data folder that becomes a database, and the proof that a server on the database shows what the one
on the folder did: read over HTTP and by exports from both, and compared as plain values.

    migrated.py FILE --postgres URL [--program target/release/tidings]

URL is an empty database; FILE is as `corpus.py` says. Read are every user, conversation, member, entry with its sequence, position in
the list, sender, time and body, every user's list with its unread counts, marks and previews, and every event from a cursor on.
"""

import argparse
import gzip
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote, urlencode

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from corpus import check, imported, records  # noqa: E402
from harness.server import Server  # noqa: E402
from history import ask, run, write  # noqa: E402


def pages(server, path, items, **query):
    """All items of a list, whatever its pages."""
    while True:
        page = ask(server, "GET", f"{path}?{urlencode(query)}")
        yield from page[items]
        if "next" not in page:
            return
        query["after"] = page["next"]


def entries(server, conversation):
    path, from_seq = f"/v1/conversations/{quote(conversation, safe='')}/messages", 1
    while True:
        page = ask(server, "GET", f"{path}?from_seq={from_seq}&limit=500")["entries"]
        yield from page
        if not page:
            return
        from_seq = page[-1]["seq"] + 1


def everything(server, folder):
    """What the server shows of all that it has, by what it is asked for."""
    began = time.monotonic()
    shown = {"users": list(pages(server, "/v1/users", "users", limit=200))}
    shown["conversations"] = list(pages(server, "/v1/conversations", "conversations", limit=200))
    for conversation in shown["conversations"]:
        of = conversation["id"]
        shown["entries", of] = list(entries(server, of))
        shown["members", of] = list(pages(server, f"/v1/conversations/{quote(of, safe='')}/members", "members", limit=200))
    for user in shown["users"]:
        path = f"/v1/users/{quote(user['id'], safe='')}"
        shown["list", user["id"]] = list(pages(server, f"{path}/conversations", "conversations", limit=100))
        shown["unread", user["id"]] = ask(server, "GET", f"{path}/unread")
    copy = Path(folder) / f"export-{server.http.replace(':', '-')}.jsonl.gz"
    status, _, errors = run(server, "export", copy)
    assert status == 0, errors
    with gzip.open(copy, "rt", encoding="utf-8") as lines:
        shown["export"] = list(lines)
    print(f"read: {sum(len(value) for key, value in shown.items() if key[0] == 'entries')} entries, {len(shown['users'])} users, "
          f"{sum(len(value) for key, value in shown.items() if key[0] == 'members')} memberships, "
          f"{len(shown['export'])} exported lines ({time.monotonic() - began:.1f} s)", flush=True)
    return shown


def digests(folder):
    """Of every file in a folder, what is in it."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()}


def compare(before, after):
    assert before.keys() == after.keys(), before.keys() ^ after.keys()
    for key, expected in before.items():
        if expected != after[key]:
            of_list = zip(expected, after[key]) if isinstance(expected, list) else [(expected, after[key])]
            one = next(((one, other) for one, other in of_list if one != other), "one is longer")
            raise AssertionError(f"{key}: {one}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--program", default=str(Path(__file__).resolve().parents[3] / "target/debug/tidings"))
    parser.add_argument("--postgres", required=True, help="an empty database")
    arguments = parser.parse_args()
    opener = gzip.open if arguments.file.suffix == ".gz" else open
    with opener(arguments.file, "rt", encoding="utf-8") as file:
        given = list(records(file))
    with tempfile.TemporaryDirectory() as folder, Server(program=arguments.program) as one:
        imported(one, write(Path(folder) / "corpus.jsonl.gz", given), "import")
        room = next(record["id"] for record in given if record["type"] == "conversation")
        first, second, *_ = (record["user"] for record in given if record["type"] == "member" and record["conversation"] == room)
        # In a conversation beside, so that the records still say who has read what.
        ask(one, "POST", "/v1/conversations", {"id": "live", "kind": "group", "owner": first, "members": [second]})
        live = [{"conversation": "live", "from": first, "client_msg_id": f"live-{n}", "body": {"text": f"live {n}"}} for n in range(20)]
        sent = [ask(one, "POST", "/v1/messages", message) for message in live]
        ask(one, "PUT", f"/v1/users/{quote(second, safe='')}/conversations/live/mute", {"muted": True})
        cursor = ask(one, "GET", "/v1/events?after=now")["next"]
        before = everything(one, folder)
        assert one.stop() == 0
        # The settings of both servers are in their environments; of the folder's files only this one is not the store's.
        (one.data / "listening").unlink(missing_ok=True)
        files = digests(one.data)
        began = time.monotonic()
        command = [arguments.program, "migrate", "--from", one.data, "--to", arguments.postgres]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        print(done.stdout, done.stderr[-300:], sep="\n")
        assert done.returncode == 0, done.stderr
        print(f"migrate: {time.monotonic() - began:.1f} s", flush=True)
        assert digests(one.data) == files, "the folder has changed"
        with Server(program=arguments.program, settings={"store.url": arguments.postgres}) as other:
            compare(before, everything(other, folder))
            check(other, given, "the database")
            again = [ask(other, "POST", "/v1/messages", message) for message in live]
            assert [(one["seq"], one["at"], one["duplicate"]) for one in again] == [(one["seq"], one["at"], True) for one in sent], again
            new = ask(other, "POST", "/v1/messages", {**live[0], "client_msg_id": "new", "body": {"text": "new"}})
            assert new["seq"] == sent[-1]["seq"] + 1 and not new.get("duplicate"), new
            events = ask(other, "GET", "/v1/events?" + urlencode({"after": cursor, "types": "entry."}))["events"]
            assert [event["data"]["seq"] for event in events] == [new["seq"]], events
            print(f"the same on both sides; {len(again)} retries were answered with their first results; the feed goes on at its cursor")


if __name__ == "__main__":
    main()
