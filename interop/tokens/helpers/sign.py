"""`sign.py KEY USER SECONDS` prints a token."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "docs/examples/server/python"))

from sign_token import sign_token  # noqa: E402

key, user, seconds = sys.argv[1:]
print(sign_token(key, user, int(seconds)))
