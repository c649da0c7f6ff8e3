"""A webhook that keeps an index of Meilisearch like the messages that Tidings has.

    pip install httpx standardwebhooks
    SECRET=whsec_... MEILI_URL=http://127.0.0.1:7700 MEILI_KEY=... python into_meilisearch.py 127.0.0.1:9000

The consumer is made once, with `"types": ["entry.message", "entry.edit", "entry.recall"]`, `"after": "start"`, and this program's address.
"""

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
from standardwebhooks import Webhook, WebhookVerificationError

INDEX = "messages"


def document_id(conversation, seq):
    """Meilisearch takes letters, digits, `-` and `_`."""
    return f"{conversation.encode().hex()}-{seq}"


def index(meili, events):
    """Puts what the events say into the index: what has no body, or is hidden, is in it no longer."""
    documents, gone = {}, set()
    for event in events:
        data = event["data"]
        key = document_id(event["subject"], data.get("target", data["seq"]))
        body = data.get("body")
        if body is None:
            documents.pop(key, None)
            gone.add(key)
        else:
            gone.discard(key)
            documents[key] = {"id": key, "conversation": event["subject"], "text": body.get("text", "")}
    if documents:
        meili.put(f"/indexes/{INDEX}/documents", params={"primaryKey": "id"}, json=list(documents.values())).raise_for_status()
    if gone:
        meili.post(f"/indexes/{INDEX}/documents/delete-batch", json=sorted(gone)).raise_for_status()


def receiver(secret, meili):
    """What answers the calls."""
    webhook = Webhook(secret)

    class Receiver(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            try:
                index(meili, webhook.verify(body, dict(self.headers)))
                status = 204
            except WebhookVerificationError:
                status = 401
            except httpx.HTTPError:
                # Tidings tries again.
                status = 502
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    return Receiver


if __name__ == "__main__":
    host, _, port = sys.argv[1].partition(":")
    headers = {"Authorization": f"Bearer {os.environ.get('MEILI_KEY', '')}"}
    with httpx.Client(base_url=os.environ["MEILI_URL"], headers=headers) as client:
        ThreadingHTTPServer((host, int(port)), receiver(os.environ["SECRET"], client)).serve_forever()
