"""`by_program.py PROGRAM ...`: tokens of a program that is no Python. It reads JSON from its input and writes its answer."""

import json
import subprocess
import sys

from harness.tokens import AUDIENCE, ISSUER, USER, run


def make(secret):
    asked = json.dumps({"secret": secret, "user": USER, "audience": AUDIENCE, "issuer": ISSUER})
    made = subprocess.run(sys.argv[1:], input=asked, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


run(make)
