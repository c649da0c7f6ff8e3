#!/usr/bin/env python3
"""The messages of an IRC channel as an import, and the proof that the server then has them as they are in the file.

    corpus.py FILE [--program target/release/tidings] [--postgres URL]

FILE has a JSON object in each line, `{"at": "2004-12-25T09:14:00Z", "room": "#ubuntu", "user": "crimsun", "text": "..."}`, and may be
compressed. The corpus that this was written for is that of "A Large-Scale Corpus for Conversation Disentanglement" (Kummerfeld et al.,
2019; https://jkk.name/irc-disentanglement), under CC BY 4.0; it is not a part of this repository.
"""

import argparse
import gzip
import json
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness.server import Server  # noqa: E402
from history import ask, run, said, shown, unread_as_given, unread_as_shown, write  # noqa: E402

# Members whose marks are somewhere in the history; of the others no record says anything: they have read all of it.
READERS = 500


def milliseconds(text):
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def records(lines):
    """The records of such lines. Messages come in the order of their times; those of one time in the order of the file."""
    messages = sorted((json.loads(line) for line in lines), key=lambda message: message["at"])
    # Names may have characters that ids may not, and one of them is a word that no id may be ("me").
    ids = {name: "irc:" + quote(name, safe="[]{}|^`\\_-+.!@#$%&'()*,:;<=>?\"") for name in dict.fromkeys(one["user"] for one in messages)}
    rooms = list(dict.fromkeys(one["room"] for one in messages))
    yield from ({"type": "user", "id": identity, "name": name} for name, identity in ids.items())
    yield from ({"type": "conversation", "kind": "group", "id": room, "name": room} for room in rooms)
    for room, user in dict.fromkeys((one["room"], one["user"]) for one in messages):
        yield {"type": "member", "conversation": room, "user": ids[user]}
    places = {}
    for number, one in enumerate(messages):
        places.setdefault(one["room"], []).append(number)
        yield {
            "type": "message", "conversation": one["room"], "id": f"irc-{number}", "from": ids[one["user"]], "at": milliseconds(one["at"]),
            "body": {"text": one["text"]},
        }
    for room, numbers in places.items():
        for place, user in enumerate(dict.fromkeys(one["user"] for one in messages if one["room"] == room)):
            if place < READERS:
                # Spread over the history; the first has read nothing.
                mark = None if place == 0 else f"irc-{numbers[place * (len(numbers) - 1) // READERS]}"
                yield {"type": "read", "conversation": room, "user": ids[user], "message": mark}
        yield {"type": "finish", "conversation": room}


def check(server, given, what):
    """The server has what the records say; how long reading it took."""
    began = time.monotonic()
    messages, reads, members = said(given)
    for conversation, expected in messages.items():
        found = shown(server, conversation)
        assert len(found) == len(expected), f"{what}: {len(found)} messages of {len(expected)}"
        for one, other in zip(found, expected):
            assert one == other, f"{what}: the server shows {one}, the file has {other}"
    names = {record["id"]: record["name"] for record in given if record["type"] == "user"}
    for at in range(0, len(names), 200):
        ids = list(names)[at:at + 200]
        for user in ask(server, "POST", "/v1/users/query", {"users": ids})["users"]:
            assert user["name"] == names[user["id"]], user
    counts = unread_as_given(given)
    sample = [pair for pair in counts if pair in reads] + [pair for pair in counts if pair not in reads][:200]
    assert unread_as_shown(server, sample) == {pair: counts[pair] for pair in sample}, f"{what}: unread"
    print(f"{what}: {sum(map(len, messages.values()))} messages, {len(names)} names and {len(sample)} unread counts are as in the file "
          f"({time.monotonic() - began:.1f} s)")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--program", default=str(Path(__file__).resolve().parents[3] / "target/debug/tidings"))
    parser.add_argument("--postgres", help="a database for the first server, in place of a data folder")
    arguments = parser.parse_args()
    opener = gzip.open if arguments.file.suffix == ".gz" else open
    with opener(arguments.file, "rt", encoding="utf-8") as file:
        given = list(records(file))
    settings = {"store.url": arguments.postgres} if arguments.postgres else {}
    with tempfile.TemporaryDirectory() as folder, Server(program=arguments.program, settings=settings) as one, Server(program=arguments.program) as other:
        file = write(Path(folder) / "corpus.jsonl.gz", given)
        assert bool(arguments.postgres) != any(one.data.rglob("*.jnl")), "the first server's messages are not where they were asked for"
        first = imported(one, file, "import")
        assert first["messages"] == sum(record["type"] == "message" for record in given), first
        check(one, given, "the first server")
        outbox = ask(one, "GET", "/v1/notifications/stats")
        again = imported(one, file, "again")
        assert (again["messages"], again["conversations"], again["members"]) == (0, 0, 0) and again["duplicates"] == first["messages"], again
        check(one, given, "after the second import")
        began = time.monotonic()
        copy = Path(folder) / "export.jsonl.gz"
        status, out, errors = run(one, "export", copy)
        assert status == 0, errors
        print(f"export: {time.monotonic() - began:.1f} s")
        with gzip.open(copy, "rt", encoding="utf-8") as exported:
            said_again = said(json.loads(line) for line in exported)
        assert said_again[0] == said(given)[0] and said_again[2] == said(given)[2], "the export differs"
        imported(other, copy, "elsewhere")
        check(other, given, "another server")
        print(f"notifications: {outbox}")


def imported(server, file, what):
    status, out, errors = run(server, "import", file)
    assert status == 0, errors
    print(f"{what}: {out.strip()} {errors.strip()}")
    return json.loads(out)


if __name__ == "__main__":
    main()
