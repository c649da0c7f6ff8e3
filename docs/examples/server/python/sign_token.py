import base64
import hashlib
import hmac
import json
import time


def sign_token(key, user, seconds=3600):
    """A token by which the app of `user` binds and calls for `seconds`; `key` is the setting `token_key`."""
    def encode(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    now = int(time.time())
    parts = {"alg": "HS256", "typ": "JWT"}, {"sub": user, "iat": now, "exp": now + seconds}
    unsigned = b".".join(encode(json.dumps(part).encode()) for part in parts)
    signature = hmac.new(key.encode(), unsigned, hashlib.sha256).digest()
    return (unsigned + b"." + encode(signature)).decode()
