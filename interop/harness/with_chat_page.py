"""`with_chat_page.py PROGRAM ...`: runs a program beside a server in development mode, whose chat page it uses."""

import os
import subprocess
import sys

from harness.server import Server

with Server(arguments=["--dev"]) as tidings:
    status = subprocess.run(sys.argv[1:], env={**os.environ, **tidings.environment()}).returncode
    if status:
        print("\n".join(f"# {line}" for line in tidings.log().splitlines()[-20:]))
sys.exit(status)
