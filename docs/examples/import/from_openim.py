#!/usr/bin/env python3
"""History of OpenIM 3 as records of docs/import.md.

    for name in user group group_member msg seq_user; do mongoexport --db openim_v3 --collection $name --out dump/$name.jsonl; done
    from_openim.py dump | gzip > history.jsonl.gz

What is read follows the collections as OpenIM's source describes them (github.com/openimsdk/open-im-server, pkg/common/storage/model:
user.go, group.go, group_member.go, msg.go, seq_user.go, and github.com/openimsdk/protocol/constant): a document of `msg` holds up to a
hundred messages of one conversation, whose id is in front of the last colon of `doc_id`. `si_` and two users begin the id of a direct
conversation, `sg_` and the group's id that of a group. Notices (content types above 1,000), revoked and deleted messages are left out.
"""

import json
import sys
from pathlib import Path

OWNER, ADMIN = 100, 60
ROLES = {OWNER: "owner", ADMIN: "admin"}
# Content types of messages, by the number of each; others keep their number.
TYPES = {101: "text", 102: "picture", 103: "voice", 104: "video", 105: "file", 106: "text", 107: "merger", 108: "card", 109: "location", 110: "custom", 114: "quote"}
AT_TEXT, QUOTE, NOTICES = 106, 114, 1_000


def lines(folder, name):
    """The documents of a collection; one that was not exported has none."""
    path = Path(folder) / f"{name}.jsonl"
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def number(value):
    """A number as mongoexport writes it, plain or with its type."""
    return int(value.get("$numberLong") or value.get("$numberInt")) if isinstance(value, dict) else int(value)


def body_of(message):
    """The content, which is JSON as text; `text` for texts."""
    try:
        content = json.loads(message["content"])
    except ValueError:
        return {"text": message["content"]}
    if isinstance(content, dict) and number(message["content_type"]) in (101, AT_TEXT, QUOTE):
        return {"text": content.get("content") or content.get("text", "")}
    return content


def quoted(message):
    """The client_msg_id of the message that a quote answers."""
    if number(message["content_type"]) == QUOTE:
        return (json.loads(message["content"]).get("quoteMessage") or {}).get("clientMsgID")
    return None


def records(folder):
    for user in lines(folder, "user"):
        yield {"type": "user", "id": user["user_id"], "name": user.get("nickname") or user["user_id"], "avatar": user.get("face_url") or None}
    for group in lines(folder, "group"):
        yield {"type": "conversation", "kind": "group", "id": group["group_id"], "name": group.get("group_name"), "avatar": group.get("face_url") or None}
    for member in lines(folder, "group_member"):
        role = ROLES.get(number(member["role_level"]))
        yield {"type": "member", "conversation": member["group_id"], "user": member["user_id"], "role": role}
    conversations = {}
    for document in lines(folder, "msg"):
        of = document["doc_id"].rpartition(":")[0]
        kept = [one for one in document["msgs"] if one and one.get("msg") and not one.get("revoke")]
        kept = [one["msg"] for one in kept if number(one["msg"]["content_type"]) < NOTICES and one["msg"].get("send_id")]
        conversations.setdefault(of, []).extend(kept)
    targets, ids = {}, {}
    for of, messages in conversations.items():
        messages.sort(key=lambda message: number(message["seq"]))
        if not messages:
            continue
        if of.startswith("si_"):
            targets[of] = {"direct": sorted((messages[0]["send_id"], messages[0]["recv_id"]))}
            yield {"type": "conversation", "kind": "direct", **targets[of]}
        else:
            targets[of] = {"conversation": messages[0]["group_id"]}
        ids[of] = {}
        for message in messages:
            identity, answered = message["client_msg_id"], quoted(message)
            yield {
                "type": "message", **targets[of], "id": identity, "from": message["send_id"], "at": number(message["send_time"]),
                "content_type": TYPES.get(number(message["content_type"]), str(message["content_type"])), "body": body_of(message),
                "mentions": ["@all" if user == "AtAllTag" else user for user in message.get("at_user_id_list") or []],
                "reply_to": answered if answered in ids[of].values() else None,
            }
            ids[of][number(message["seq"])] = identity
    for place in lines(folder, "seq_user"):
        of = place["conversation_id"]
        if of in targets:
            # The mark may be at a notice, which is no message here.
            read = [seq for seq in ids[of] if seq <= number(place["read_seq"])]
            yield {"type": "read", **targets[of], "user": place["user_id"], "message": ids[of][max(read)] if read else None}
    groups = [{"conversation": group["group_id"]} for group in lines(folder, "group")]
    for target in groups + [target for target in targets.values() if "direct" in target]:
        yield {"type": "finish", **target}


if __name__ == "__main__":
    for record in records(sys.argv[1]):
        print(json.dumps({name: value for name, value in record.items() if value is not None or name == "message"}, ensure_ascii=False))
