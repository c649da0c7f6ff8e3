"""A server in development mode, whose chat page the browser's part of the suite (suite.mjs) uses."""

import os
import subprocess
import sys

from harness.server import Server

with Server(arguments=["--dev"]) as tidings:
    status = subprocess.run(["node", "suite.mjs"], env={**os.environ, **tidings.environment()}).returncode
    if status:
        print("\n".join(f"# {line}" for line in tidings.log().splitlines()[-20:]))
sys.exit(status)
