"""A server whose webhook refuses what it is called with, and a helper that the browser's part of the suite (suite.mjs) asks to let the
webhook take, and to stop and start the server."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness.server import Server

# None of these may be shown.
SECRETS = {"webhook.secret": "secret-of-the-webhook-9f2c", "link.secret": "secret-of-the-links-71ab", "api_keys": "another-secret-key-55d0",
           "hook.secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}


class Helper(BaseHTTPRequestHandler):
    takes = False
    taken = []
    tidings = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        if self.path == "/hook":
            if Helper.takes:
                Helper.taken += json.loads(body)["events"]
            return self.answer(200 if Helper.takes else 500, {})
        if self.path == "/ask":
            answers = [{"id": question["id"], "action": "refuse", "code": "spam", "text": "Not here."} for question in json.loads(body)["questions"]]
            return self.answer(200, {"answers": answers})
        if self.path == "/take":
            Helper.takes = True
        elif self.path == "/refuse":
            Helper.takes = False
        elif self.path == "/stop":
            Helper.tidings.stop()
        elif self.path == "/start":
            Helper.tidings.start()
        self.answer(200, {"http": Helper.tidings.http, "taken": Helper.taken, "log": Helper.tidings.log()})

    def answer(self, status, content):
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


# The keys by which a push service of browsers knows this server; none is called here.
NEW_KEYS = """
const pair = require("crypto").createECDH("prime256v1");
pair.generateKeys();
console.log(JSON.stringify([pair.getPrivateKey("base64url"), pair.getPublicKey("base64url")]));
"""
private_key, public_key = json.loads(subprocess.check_output(["node", "--eval", NEW_KEYS]))
helper = ThreadingHTTPServer(("127.0.0.1", 0), Helper)
helper.daemon_threads = True
threading.Thread(target=helper.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{helper.server_address[1]}"
settings = {
    **SECRETS,
    "webhook.url": f"{address}/hook",
    "hook.url": f"{address}/ask",
    "webhook.attempts_max": 1,
    "webhook.backoff_min_ms": 10,
    "messages.edit_history": "true",
    "web_push.private_key": private_key,
    "web_push.public_key": public_key,
    "web_push.subject": "mailto:ops@example.com",
    "web_push.services": address,
}

with Server(settings=settings) as tidings:
    Helper.tidings = tidings
    environment = {**os.environ, **tidings.environment(), "HELPER": address, "SECRETS": json.dumps(list(SECRETS.values()))}
    status = subprocess.run(["node", *(sys.argv[1:] or ["suite.mjs"])], env=environment).returncode
    if status:
        print("\n".join(f"# {line}" for line in tidings.log().splitlines()[-20:]))
sys.exit(status)
