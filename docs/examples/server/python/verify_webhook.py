import hashlib
import hmac
import time


def verify(secret, headers, body, now=None, tolerance_s=300):
    """Whether `body`, the bytes as they came, was signed by Tidings within the last minutes."""
    timestamp, signature = headers.get("Tidings-Timestamp", ""), headers.get("Tidings-Signature", "")
    if not (timestamp.isascii() and timestamp.isdigit() and signature.isascii()):
        return False
    expected = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    fresh = abs((time.time() if now is None else now) - int(timestamp)) <= tolerance_s
    return hmac.compare_digest(expected, signature) and fresh
