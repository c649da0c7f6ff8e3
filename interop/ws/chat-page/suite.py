"""The app's side of docs/examples/chat.html: a server that serves the page and signs tokens, and a Tidings of its own that the
browser's part of the suite (browser.mjs) may kill, stop and start again."""

import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

from harness.api import api, token
from harness.server import Server

PAGE = Path(os.environ["INTEROP"]).parent / "docs" / "examples" / "chat.html"

with Server() as tidings:

    class App(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            kind, text = "text/plain", ""
            if url.path == "/":
                kind, text = "text/html", PAGE.read_text()
            elif url.path == "/token":
                text = token(query["user"], key=tidings.token_key)
            elif url.path == "/kill":
                tidings.kill()
            elif url.path == "/stop":
                tidings.stop()
            elif url.path == "/start":
                text = tidings.start().http
            elif url.path == "/address":
                text = tidings.http
            elif url.path == "/say":
                body = {"from": query["from"], "to": query["to"], "body": {"text": query["text"]}}
                api("POST", "/v1/messages", body, url=tidings.url, key=tidings.api_key)
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    api("PUT", "/v1/users", {"users": [{"id": "ada"}, {"id": "ben"}]}, url=tidings.url, key=tidings.api_key)
    app = ThreadingHTTPServer(("127.0.0.1", 0), App)
    Thread(target=app.serve_forever, daemon=True).start()
    status = subprocess.run(["node", "browser.mjs", f"http://127.0.0.1:{app.server_port}"]).returncode
    app.shutdown()
sys.exit(status)
