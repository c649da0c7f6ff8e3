"""`run_with_people.py NAME PROGRAM ...`: makes the users of a suite, and runs a client that is no Python with their tokens
in its environment: SUITE (the name), TOKEN_ADA, TOKEN_BEN, TOKEN_CY. Users are `NAME-ada` and so on."""

import os
import sys

from harness.api import token
from harness.session import prepare

name, program = sys.argv[1], sys.argv[2:]
for user in prepare(name):
    os.environ[f"TOKEN_{user.rsplit('-', 1)[1].upper()}"] = token(user)
os.environ["SUITE"] = name
os.execvp(program[0], program)
