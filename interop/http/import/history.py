"""What an import says and what a server shows, written from docs/import.md and docs/http.md alone: both as plain values, to be compared."""

import gzip
import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request


class Refused(Exception):
    """`status` and the problem of a call that was refused."""

    def __init__(self, status, problem):
        super().__init__(f"{status}: {problem}")
        self.status, self.code, self.detail = status, problem.get("code"), problem.get("detail", "")


def opened(server, method, path, body=None, kind="application/json"):
    headers = {"Authorization": f"Bearer {server.api_key}", **({"Content-Type": kind} if body is not None else {})}
    request = urllib.request.Request(server.url + path, method=method, data=body, headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=600)
    except urllib.error.HTTPError as error:
        raise Refused(error.code, json.loads(error.read())) from None


def ask(server, method, path, body=None):
    with opened(server, method, path, None if body is None else json.dumps(body).encode()) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def post(server, lines):
    """`POST /v1/import` of these lines; the counts."""
    body = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines).encode()
    with opened(server, "POST", "/v1/import", body, "application/x-ndjson") as answer:
        return json.loads(answer.read())


def export(server, conversation=None):
    """`GET /v1/export`, as records."""
    query = "" if conversation is None else "?" + urllib.parse.urlencode({"conversation": conversation})
    with opened(server, "GET", "/v1/export" + query) as answer:
        return [json.loads(line) for line in answer]


def run(server, *arguments):
    """`tidings import` or `tidings export`: its status, output and errors."""
    command = [server.program, *map(str, arguments), "--server", server.http, "--key", server.api_key]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    return done.returncode, done.stdout, done.stderr


def write(path, records):
    """A file of records, compressed if its name says so."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "wt", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return path


def conversation_id(record):
    return record.get("conversation") or "~".join(sorted(record["direct"]))


def said(records):
    """What the records of a file say: the messages of each conversation in order, and who has read up to which of them."""
    messages, reads, members = {}, {}, {}
    for record in records:
        match record["type"]:
            case "conversation":
                of = record.get("id") or "~".join(sorted(record["direct"]))
                messages.setdefault(of, [])
                members.setdefault(of, set(record.get("direct", [])))
            case "member":
                members[record["conversation"]].add(record["user"])
            case "message":
                given = {reaction["key"]: sorted(reaction["users"]) for reaction in record.get("reactions", [])}
                shown = {
                    "id": record["id"], "from": record.get("from"), "at": record["at"], "body": record["body"],
                    "type": record.get("content_type", "text"), "reply_to": record.get("reply_to"), "reactions": given,
                    "edited_at": record.get("edited_at"), "mentions": record.get("mentions", []), "silent": record.get("silent", False),
                }
                messages[conversation_id(record)].append(shown)
            case "read":
                reads[conversation_id(record), record["user"]] = record["message"]
    return messages, reads, members


def shown(server, conversation):
    """The messages that the server shows of a conversation, in order."""
    path = f"/v1/conversations/{urllib.parse.quote(conversation, safe='')}/messages"
    messages, by_seq, from_seq = [], {}, 1
    while True:
        page = ask(server, "GET", f"{path}?from_seq={from_seq}&limit=500")
        for entry in page["entries"]:
            if entry["kind"] != "message":
                continue
            identity = entry.get("client_msg_id", "")
            by_seq[entry["seq"]] = identity.removeprefix("import:")
            given = {}
            for reaction in entry.get("reactions", []):
                given[reaction["key"]] = sorted(reaction["users"])
                if reaction["count"] > len(reaction["users"]):
                    everybody = ask(server, "GET", f"{path}/{entry['seq']}/reactions")["reactions"]
                    given[reaction["key"]] = sorted(one["user"] for one in everybody if one["key"] == reaction["key"])
            messages.append({
                "id": by_seq[entry["seq"]], "from": entry.get("from"), "at": entry["at"], "body": entry["body"], "type": entry["type"],
                "reply_to": by_seq.get((entry.get("reply_to") or {}).get("seq")), "reactions": given, "edited_at": entry.get("edited_at"),
                "mentions": entry.get("mentions", []), "silent": entry.get("silent", False),
            })
        if not page["entries"]:
            return messages
        from_seq = page["entries"][-1]["seq"] + 1


def unread_as_given(records):
    """How many messages of others each member has not read, by the records alone; the server counts to 1,000."""
    messages, reads, members = said(records)
    counts = {}
    for conversation, all_messages in messages.items():
        places = {message["id"]: place for place, message in enumerate(all_messages)}
        for user in members[conversation]:
            through = len(all_messages) - 1
            if (conversation, user) in reads:
                message = reads[conversation, user]
                through = -1 if message is None else places[message]
            unread = [one for one in all_messages[through + 1:] if one["from"] != user and not one["silent"]]
            counts[conversation, user] = min(len(unread), 1_000)
    return counts


def unread_as_shown(server, pairs):
    path = "/v1/users/{}/conversations/{}"
    return {
        (conversation, user): ask(server, "GET", path.format(urllib.parse.quote(user, safe=""), urllib.parse.quote(conversation, safe="")))["conversations"][0]["unread"]
        for conversation, user in pairs
    }
