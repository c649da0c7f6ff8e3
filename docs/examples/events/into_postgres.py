"""Keeps tables of PostgreSQL like what Tidings has: messages, members and profiles, from the beginning and on.

    pip install httpx pg8000
    TIDINGS_URL=http://127.0.0.1:8080 TIDINGS_API_KEY=... DATABASE=user@host:5432/name python into_postgres.py

The cursor is a row beside the others, written in the same transaction: after a crash nothing is missed, and nothing is counted twice.
"""

import json
import os

import httpx
import pg8000.dbapi

TABLES = """
CREATE TABLE IF NOT EXISTS feed_cursor (one bool PRIMARY KEY DEFAULT true CHECK (one), cursor text NOT NULL);
CREATE TABLE IF NOT EXISTS messages (conversation text, seq bigint, sender text, body json, at_ms bigint, PRIMARY KEY (conversation, seq));
CREATE TABLE IF NOT EXISTS members (conversation text, member text, role text, read_seq bigint, PRIMARY KEY (conversation, member));
CREATE TABLE IF NOT EXISTS profiles (id text PRIMARY KEY, name text);
"""


def take(sql, event):
    """Makes what an event says so."""
    kind, subject, data = event["type"], event["subject"], event["data"]
    if kind == "entry.message":
        sql(
            "INSERT INTO messages VALUES (%s, %s, %s, %s::json, %s) ON CONFLICT (conversation, seq) DO UPDATE SET body = excluded.body",
            (subject, data["seq"], data.get("from"), json.dumps(data.get("body")), data["at"]),
        )
    elif kind == "entry.edit":
        sql("UPDATE messages SET body = %s::json WHERE conversation = %s AND seq = %s", (json.dumps(data.get("body")), subject, data["target"]))
    elif kind == "entry.recall":
        sql("UPDATE messages SET body = NULL WHERE conversation = %s AND seq = %s", (subject, data["target"]))
    elif kind == "members":
        for member in data["joined"] + data["changed"]:
            sql(
                "INSERT INTO members VALUES (%s, %s, %s, %s) ON CONFLICT (conversation, member)"
                " DO UPDATE SET role = excluded.role, read_seq = excluded.read_seq",
                (subject, member["user"], member["role"], member["read_seq"]),
            )
        for user in data["left"]:
            sql("DELETE FROM members WHERE conversation = %s AND member = %s", (subject, user))
    elif kind == "read":
        sql("UPDATE members SET read_seq = %s WHERE conversation = %s AND member = %s", (data["read_seq"], subject, data["user"]))
    elif kind == "user":
        sql("INSERT INTO profiles VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET name = excluded.name", (subject, data.get("name")))


def follow(http, database, stop=lambda caught_up: False):
    """Takes all events in their order, each page in one transaction."""
    rows = database.cursor()
    rows.execute(TABLES)
    rows.execute("SELECT cursor FROM feed_cursor")
    after = (rows.fetchone() or ["start"])[0]
    database.commit()
    while True:
        types = "entry.message,entry.edit,entry.recall,members,read,user"
        answer = http.get("/v1/events", params={"after": after, "types": types, "limit": 500, "wait_s": 5}, timeout=60)
        answer.raise_for_status()
        page = answer.json()
        for event in page["events"]:
            take(rows.execute, event)
        after = page["next"]
        rows.execute("INSERT INTO feed_cursor (cursor) VALUES (%s) ON CONFLICT (one) DO UPDATE SET cursor = excluded.cursor", (after,))
        database.commit()
        if stop(caught_up=not page["more"] and not page["events"]):
            return


if __name__ == "__main__":
    user, _, rest = os.environ["DATABASE"].partition("@")
    address, _, name = rest.partition("/")
    host, _, port = address.partition(":")
    headers = {"Authorization": f"Bearer {os.environ['TIDINGS_API_KEY']}"}
    with httpx.Client(base_url=os.environ["TIDINGS_URL"], headers=headers) as http:
        follow(http, pg8000.dbapi.connect(user, host=host, port=int(port or 5432), database=name, password=os.environ.get("PGPASSWORD")))
