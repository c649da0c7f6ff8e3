"""Starts nginx as it comes, which lets no upgrade through, before the page of the TypeScript client and its server; then the suite."""

import os
import subprocess
import sys
from pathlib import Path

from harness.api import token
from harness.proxies import Proxy, program
from harness.session import prepare

INTEROP, SCRATCH = Path(os.environ["INTEROP"]), Path(os.environ["INTEROP_TMP"])
file = SCRATCH / "nginx.conf"


def configure(ports):
    temporary = "".join(f"    {kind}_temp_path {SCRATCH}/{kind};\n" for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"])
    file.write_text(f"""
{"user root;" if os.geteuid() == 0 else ""}
pid {SCRATCH}/nginx.pid;
error_log {SCRATCH}/error.log;
events {{}}
http {{
{temporary}
    access_log off;
    types {{ text/html html; text/javascript js; }}
    server {{
        listen 127.0.0.1:{ports[0]};
        location = /page.html {{ alias {INTEROP}/sdk/chromium/page.html; }}
        location /src/ {{ alias {INTEROP.parent}/sdk/typescript/dist/src/; }}
        location /v1/ {{ proxy_pass {os.environ["TIDINGS_URL"]}; }}
    }}
}}
""")


people = prepare("sdkblocked")
tokens = {f"TOKEN_{user.rsplit('-', 1)[1].upper()}": token(user) for user in people}
with Proxy([program("nginx"), "-g", "daemon off;", "-c", file], configure, 1, SCRATCH / "nginx.log") as proxy:
    environment = {**os.environ, **tokens, "SUITE": "sdkblocked", "NGINX": f"127.0.0.1:{proxy.ports[0]}"}
    status = subprocess.run(["node", "suite.mjs"], env=environment, check=False).returncode
sys.exit(status)
