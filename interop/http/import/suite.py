"""Imports and exports over HTTP and by the program's commands, and the converters of docs/examples/import on made-up dumps: what the server
shows is compared with what the files say."""

import json
import random
import sys
import tempfile
import threading
from pathlib import Path

from harness.server import Server
from harness.tap import Tap

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "docs" / "examples" / "import"))
import corpus  # noqa: E402
import from_openim  # noqa: E402
import from_rocketchat  # noqa: E402
from history import Refused, ask, export, post, run, said, shown, unread_as_given, unread_as_shown, write  # noqa: E402

THEN = 1_245_000_000_000
dice = random.Random(34)
folder = Path(tempfile.mkdtemp(prefix="import-"))


def dump(name, **collections):
    """A folder of collections, as mongoexport writes them."""
    place = folder / name
    place.mkdir()
    for collection, documents in collections.items():
        write(place / f"{collection}.jsonl", documents)
    return place


def compact(records):
    return [{name: value for name, value in record.items() if value not in (None, []) or name == "message"} for record in records]


def is_as_given(server, records):
    messages, *_ = said(records)
    for conversation, expected in messages.items():
        found = shown(server, conversation)
        assert found == expected, f"{conversation}: {found} is not {expected}"
    counts = unread_as_given(records)
    found = unread_as_shown(server, counts)
    assert found == counts, f"{found} is not {counts}"


def openim():
    def message(seq, sender, kind, content, **more):
        return {"msg": {
            "send_id": sender, "recv_id": "", "group_id": "2559", "client_msg_id": f"c{seq}", "server_msg_id": f"s{seq}", "content_type": kind,
            "content": json.dumps(content), "seq": {"$numberLong": str(seq)}, "send_time": THEN + seq * 1_000, "session_type": 3, **more,
        }, "del_list": []}

    direct = message(1, "ben", 101, {"content": "hi"}, recv_id="ada", group_id="", session_type=1)
    given = dump(
        "openim",
        user=[{"user_id": name, "nickname": name.title(), "face_url": ""} for name in ("ada", "ben", "cem")],
        group=[{"group_id": "2559", "group_name": "House", "face_url": "https://x/y.png"}, {"group_id": "2560", "group_name": "Empty"}],
        group_member=[{"group_id": "2559", "user_id": name, "role_level": level} for name, level in (("ada", 100), ("ben", 60), ("cem", 20))],
        msg=[
            {"doc_id": "sg_2559:0", "msgs": [
                message(1, "ada", 1501, {}), message(2, "ada", 101, {"content": "one"}), message(3, "ben", 106, {"text": "@cem"}, at_user_id_list=["cem"]),
                message(4, "cem", 114, {"text": "two", "quoteMessage": {"clientMsgID": "c2"}}), {**message(5, "ben", 101, {"content": "gone"}), "revoke": {"role": 1}},
                message(6, "ben", 102, {"sourcePicture": {"url": "u"}}), None,
            ]},
            {"doc_id": "si_ada_ben:0", "msgs": [direct]},
        ],
        seq_user=[
            {"user_id": "ada", "conversation_id": "sg_2559", "read_seq": 6}, {"user_id": "ben", "conversation_id": "sg_2559", "read_seq": 3},
            {"user_id": "cem", "conversation_id": "sg_2559", "read_seq": 1}, {"user_id": "ada", "conversation_id": "si_ada_ben", "read_seq": 0},
        ],
    )
    records = compact(from_openim.records(given))
    with Server() as server:
        counts = post(server, records)
        assert (counts["users"], counts["conversations"], counts["messages"], counts["finished"]) == (3, 3, 5, 3), counts
        is_as_given(server, records)
        found = shown(server, "2559")
        assert [one["from"] for one in found] == ["ada", "ben", "cem", "ben"], found
        assert (found[2]["reply_to"], found[1]["mentions"], found[3]["type"]) == ("c2", ["cem"], "picture"), found
        assert unread_as_shown(server, [("2559", "cem"), ("2559", "ben"), ("ada~ben", "ada")]) == {("2559", "cem"): 3, ("2559", "ben"): 1, ("ada~ben", "ada"): 1}


def rocketchat():
    def message(number, user, text, room="GENERAL", **more):
        return {"_id": f"m{number}", "rid": room, "msg": text, "ts": {"$date": f"2009-06-15T10:00:{number:02}.000Z"}, "u": {"_id": user, "username": user.upper()}, **more}

    def subscription(user, room, seen, **more):
        return {"rid": room, "u": {"_id": user}, "t": "c", "ls": {"$date": f"2009-06-15T10:00:{seen:02}.500Z"}, "unread": 0, **more}

    given = dump(
        "rocketchat",
        users=[{"_id": name, "username": name.upper(), "name": name.title()} for name in ("ada", "ben", "cem")],
        rocketchat_room=[
            {"_id": "GENERAL", "t": "c", "name": "general"}, {"_id": "news", "t": "p", "name": "news", "ro": True},
            {"_id": "adaben", "t": "d", "uids": ["ben", "ada"]}, {"_id": "all3", "t": "d", "uids": ["ada", "ben", "cem"]}, {"_id": "visit", "t": "l"},
        ],
        rocketchat_subscription=[
            subscription("ada", "GENERAL", 9, roles=["owner"]), subscription("ben", "GENERAL", 2, roles=["moderator"]), subscription("cem", "GENERAL", 0),
            subscription("ada", "adaben", 0), subscription("ben", "adaben", 9), subscription("cem", "news", 9),
        ],
        rocketchat_message=[
            message(1, "ada", "", t="uj"), message(2, "ada", "one", reactions={":+1:": {"usernames": ["BEN", "CEM"]}, ":heart:": {"usernames": ["ADA"]}}),
            message(3, "ben", "two", tmid="m2", mentions=[{"_id": "cem", "username": "CEM"}], editedAt={"$date": "2009-06-15T10:05:00Z"}, editedBy={"_id": "ben"}),
            message(4, "cem", "hidden", _hidden=True), message(5, "ben", "hi", room="adaben"), message(6, "cem", "three", attachments=[{"title": "a"}]),
        ],
    )
    records = compact(from_rocketchat.records(given))
    with Server() as server:
        counts = post(server, records)
        assert (counts["conversations"], counts["messages"], counts["finished"]) == (4, 4, 4), counts
        is_as_given(server, records)
        found = shown(server, "GENERAL")
        assert found[0]["reactions"] == {"👍": ["ben", "cem"], "❤️": ["ada"]} and found[1]["reply_to"] == "m2", found
        assert ask(server, "GET", "/v1/conversations/news")["posting"] == "admins"


def channel(messages):
    """Lines like those of the corpus, made up."""
    at = 0
    for number in range(messages):
        at += dice.randrange(3)
        yield json.dumps({"at": f"2009-06-15T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}Z", "room": "#made-up", "user": f"nick {dice.randrange(40)}^", "text": f"line {number}"})


def a_channel():
    """As the whole corpus, smaller: import, again, export, elsewhere."""
    given = list(corpus.records(channel(3_000)))
    with Server() as one, Server() as other:
        file = write(folder / "channel.jsonl.gz", given)
        first = corpus.imported(one, file, "# import")
        assert (first["messages"], first["times_moved"]) == (3_000, 0), first
        is_as_given(one, given)
        again = corpus.imported(one, file, "# again")
        assert (again["messages"], again["duplicates"]) == (0, 3_000), again
        is_as_given(one, given)
        status, _, errors = run(one, "export", folder / "copy.jsonl.gz")
        assert status == 0, errors
        corpus.imported(other, folder / "copy.jsonl.gz", "# elsewhere")
        is_as_given(other, given)
        assert export(other, "#made-up") == export(one, "#made-up")


def killed():
    """Killed in the middle, and damaged in the middle: repeated, it goes on."""
    given = list(corpus.records(channel(6_000)))
    file = write(folder / "killed.jsonl", given)
    with Server() as server:
        for after in (1_000, 2_500):
            server.stop()
            server.start()
            ends = threading.Thread(target=run, args=(server, "import", file))
            ends.start()
            seen = 0
            while ends.is_alive() and seen < after:
                try:
                    seen = ask(server, "GET", "/v1/conversations/%23made-up")["last_seq"]
                except (Refused, OSError):
                    pass
            server.kill()
            ends.join()
            server.start()
        damaged = folder / "damaged.jsonl"
        text = file.read_text().splitlines(keepends=True)
        damaged.write_text("".join(text[:5_000]) + text[5_000][:20] + "\n" + "".join(text[5_001:]))
        status, _, errors = run(server, "import", damaged)
        assert status == 1 and "line 5001: " in errors, errors
        status, _, errors = run(server, "import", file)
        assert status == 0, errors
        is_as_given(server, given)


def refused():
    with Server() as server:
        for lines, code, detail in [
            (["{"], "malformed", "line 1: "), ([{"type": "user", "id": "a"}, {"type": "user"}], "invalid_field", "line 2: "),
            ([{"type": "finish", "conversation": "nowhere"}], "not_found", "line 1: "), (["x" * 1_100_000], "limit_exceeded", "line 1: "),
        ]:
            try:
                post(server, [line + "\n" if isinstance(line, str) else line for line in lines])
            except Refused as error:
                assert error.code == code and error.detail.startswith(detail), error
            else:
                raise AssertionError(f"{lines} were taken")


tap = Tap("Python's urllib, and tidings import")
tap.case("what the converter makes of OpenIM's collections is shown as it was", openim)
tap.case("what the converter makes of Rocket.Chat's collections is shown as it was", rocketchat)
tap.case("a channel is imported, imported again, exported and imported elsewhere", a_channel)
tap.case("an import that is killed or finds a damaged line goes on when it is repeated", killed)
tap.case("what cannot be taken is refused with the line", refused)
tap.end()
