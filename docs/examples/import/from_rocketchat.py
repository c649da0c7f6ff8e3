#!/usr/bin/env python3
"""History of Rocket.Chat as records of docs/import.md.

    for name in users rocketchat_room rocketchat_subscription rocketchat_message; do
        mongoexport --db rocketchat --collection $name --sort '{"ts": 1}' --out dump/$name.jsonl
    done
    from_rocketchat.py dump | gzip > history.jsonl.gz

What is read follows the types of the collections in Rocket.Chat's source (github.com/RocketChat/Rocket.Chat, packages/core-typings/src:
IUser.ts, IRoom.ts, ISubscription.ts, IMessage/IMessage.ts). Users get the id that is their `_id`; reactions name them by `username`.
Channels (`c`) and private groups (`p`) are groups here; a room of two (`d`) is direct, and one of more is a group. Messages of the
system (`t`), hidden and encrypted ones are left out.
"""

import json
import sys
from datetime import datetime
from pathlib import Path

EMOJI = {":thumbsup:": "👍", ":+1:": "👍", ":heart:": "❤️", ":tada:": "🎉", ":smile:": "😄"}


def lines(folder, name):
    """The documents of a collection; one that was not exported has none."""
    path = Path(folder) / f"{name}.jsonl"
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def milliseconds(date):
    """A date as mongoexport writes it."""
    date = date["$date"]
    if isinstance(date, dict):
        return int(date["$numberLong"])
    return int(datetime.fromisoformat(date.replace("Z", "+00:00")).timestamp() * 1000) if isinstance(date, str) else int(date)


def role_of(subscription):
    roles = subscription.get("roles") or []
    return "owner" if "owner" in roles else "admin" if {"moderator", "leader"} & set(roles) else None


def records(folder):
    by_name = {}
    for user in lines(folder, "users"):
        by_name[user.get("username")] = user["_id"]
        yield {"type": "user", "id": user["_id"], "name": user.get("name") or user.get("username"), "language": user.get("language") or None}
    targets = {}
    for room in lines(folder, "rocketchat_room"):
        users = sorted(set(room.get("uids") or []))
        if room["t"] == "d" and len(users) == 2:
            targets[room["_id"]] = {"direct": users}
            yield {"type": "conversation", "kind": "direct", "direct": users}
        elif room["t"] in "cpd":
            targets[room["_id"]] = {"conversation": room["_id"]}
            posting = "admins" if room.get("ro") else None
            yield {"type": "conversation", "kind": "group", "id": room["_id"], "name": room.get("fname") or room.get("name"), "posting": posting}
    subscriptions = [one for one in lines(folder, "rocketchat_subscription") if one["rid"] in targets]
    for one in subscriptions:
        if "conversation" in targets[one["rid"]]:
            yield {"type": "member", **targets[one["rid"]], "user": one["u"]["_id"], "role": role_of(one)}
    messages = [one for one in lines(folder, "rocketchat_message") if one["rid"] in targets and not one.get("t") and not one.get("_hidden")]
    messages.sort(key=lambda message: milliseconds(message["ts"]))
    sent, known = {}, set()
    for one in messages:
        at, room = milliseconds(one["ts"]), one["rid"]
        reactions = [
            {"key": EMOJI.get(key, key), "users": [by_name[name] for name in given["usernames"] if name in by_name]}
            for key, given in (one.get("reactions") or {}).items()
        ]
        mentions = ["@all" if user["_id"] in ("all", "here") else user["_id"] for user in one.get("mentions") or [] if user.get("type") != "team"]
        body = {"text": one["msg"], **({"attachments": one["attachments"]} if one.get("attachments") else {})}
        yield {
            "type": "message", **targets[room], "id": one["_id"], "from": one["u"]["_id"], "at": at, "body": body, "mentions": mentions,
            "reply_to": one.get("tmid") if (room, one.get("tmid")) in known else None,
            "edited_at": milliseconds(one["editedAt"]) if one.get("editedAt") else None, "reactions": reactions,
        }
        sent.setdefault(room, []).append((at, one["_id"]))
        known.add((room, one["_id"]))
    for one in subscriptions:
        if not one.get("ls") and not one.get("unread"):
            continue
        # `ls` is when the user has seen the room last.
        seen = milliseconds(one["ls"]) if one.get("ls") else 0
        read = [identity for at, identity in sent.get(one["rid"], []) if at <= seen]
        yield {"type": "read", **targets[one["rid"]], "user": one["u"]["_id"], "message": read[-1] if read else None}
    for target in targets.values():
        yield {"type": "finish", **target}


if __name__ == "__main__":
    for record in records(sys.argv[1]):
        print(json.dumps({name: value for name, value in record.items() if value not in (None, []) or name == "message"}, ensure_ascii=False))
