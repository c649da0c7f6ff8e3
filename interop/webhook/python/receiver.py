"""A receiver of webhooks with the standard library. What it prints, a line each, is what `../drive.py` reads."""

import http.server
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "docs/examples/server/python"))

from verify_webhook import verify  # noqa: E402

SECRET = os.environ["WEBHOOK_SECRET"]
plan = []  # statuses that the next good calls are answered with


def tell(**what):
    print(json.dumps(what), flush=True)


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/plan":
            plan[:] = json.loads(body)
            return self.answer(204)
        if not verify(SECRET, self.headers, body):
            tell(status=401, timestamp=self.headers.get("Tidings-Timestamp"))
            return self.answer(401)
        status = plan.pop(0) if plan else 200
        tell(status=status, timestamp=self.headers["Tidings-Timestamp"], signature=self.headers["Tidings-Signature"],
             type=self.headers["Content-Type"], body=body.hex(), events=json.loads(body)["events"])
        self.answer(status)

    def answer(self, status):
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
tell(client=f"Python {sys.version.split()[0]}, hmac", port=server.server_port)
server.serve_forever()
