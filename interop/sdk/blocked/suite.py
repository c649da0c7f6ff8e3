"""Starts nginx as it comes, which lets no upgrade through, before the page of the TypeScript client and its server; then the suite."""

import os
import subprocess
import sys
from pathlib import Path

from harness.api import token
from harness.proxies import Proxy, nginx_configuration, program
from harness.session import prepare

INTEROP, SCRATCH = Path(os.environ["INTEROP"]), Path(os.environ["INTEROP_TMP"])
file = SCRATCH / "nginx.conf"


def configure(ports):
    file.write_text(nginx_configuration(SCRATCH, f"""
        listen 127.0.0.1:{ports[0]};
        location = /page.html {{ alias {INTEROP}/sdk/chromium/page.html; }}
        location /src/ {{ alias {INTEROP.parent}/sdk/typescript/dist/src/; }}
        location /v1/ {{ proxy_pass {os.environ["TIDINGS_URL"]}; }}"""))


people = prepare("sdkblocked")
tokens = {f"TOKEN_{user.rsplit('-', 1)[1].upper()}": token(user) for user in people}
with Proxy([program("nginx"), "-g", "daemon off;", "-c", file], configure, 1, SCRATCH / "nginx.log") as proxy:
    environment = {**os.environ, **tokens, "SUITE": "sdkblocked", "NGINX": f"127.0.0.1:{proxy.ports[0]}"}
    status = subprocess.run(["node", "suite.mjs"], env=environment, check=False).returncode
sys.exit(status)
