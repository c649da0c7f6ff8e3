"""Pages of other origins, in Chromium: two page servers, one server that allows the first of them, one that allows nobody."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness.api import api, token
from harness.server import Server


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        text = b"<!doctype html><title>a page</title>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def serve_pages():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


allowed, other = serve_pages(), serve_pages()
with Server(settings={"cors.origins": allowed}) as some, Server() as none:
    for server in (some, none):
        api("PUT", "/v1/users", {"users": [{"id": "cors-ada"}, {"id": "cors-ben"}]}, url=server.url, key=server.api_key)
    environment = {
        **os.environ,
        "ALLOWED": allowed,
        "OTHER": other,
        "SOME": some.url,
        "NONE": none.url,
        "TOKEN": token("cors-ada", key=some.token_key),
    }
    sys.exit(subprocess.call(["node", "suite.mjs"], env=environment))
