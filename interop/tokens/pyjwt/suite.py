"""Tokens by PyJWT."""

import base64
import hashlib
import hmac
import json
import os
import time

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from harness.tokens import AUDIENCE, ISSUER, USER, run


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def by_hand(header, claims, secret):
    """What PyJWT will not make: it refuses a public key as a secret."""
    signed = f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(claims).encode())}"
    return f"{signed}.{encoded(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def make(secret):
    name = os.urandom(4).hex()
    keys = {
        "RS256": rsa.generate_private_key(65537, 2048),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    }
    others = {
        "RS256": rsa.generate_private_key(65537, 2048),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    }
    makers = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}
    published = []
    for algorithm, key in keys.items():
        card = json.loads(makers[algorithm].to_jwk(key.public_key()))
        published.append({**card, "kid": f"{algorithm}-{name}", "use": "sig", "alg": algorithm})
    now = int(time.time())

    def claims(**changes):
        all_claims = {"sub": USER, "iat": now, "exp": now + 600, "aud": AUDIENCE, "iss": ISSUER, **changes}
        return {claim: value for claim, value in all_claims.items() if value is not None}

    def sign(algorithm, key=None, header=None, **changes):
        key = key or keys.get(algorithm) or secret
        headers = {} if algorithm.startswith("HS") else {"kid": f"{algorithm}-{name}"}
        return jwt.encode(claims(**changes), key, algorithm=algorithm, headers={**headers, **(header or {})})

    good = [{"name": algorithm, "token": sign(algorithm), "takes": True} for algorithm in ("HS256", *keys)]
    good += [
        {"name": f"{algorithm} without a `kid`", "token": jwt.encode(claims(), key, algorithm=algorithm), "takes": True}
        for algorithm, key in keys.items()
    ]
    good.append({"name": "EdDSA with several audiences", "token": sign("EdDSA", aud=["shop", AUDIENCE]), "takes": True})
    bad = []
    for algorithm in ("HS256", *keys):
        bad.append({"name": f"{algorithm} that has expired", "token": sign(algorithm, exp=now - 60), "code": "token_expired"})
        other = others.get(algorithm, "another secret of thirty-two bytes or more")
        bad.append({"name": f"{algorithm} that another key signed", "token": sign(algorithm, key=other)})
        bad.append({"name": f"{algorithm} with `crit`", "token": sign(algorithm, header={"crit": ["x"], "x": 1})})
        whole = sign(algorithm)
        bad.append({"name": f"{algorithm} without its signature", "token": whole[: whole.rindex(".") + 1]})
    changes = {
        "no `exp`": {"exp": None},
        "`exp` in milliseconds": {"exp": (now + 600) * 1000},
        "`nbf` ahead": {"nbf": now + 300},
        "another audience": {"aud": "shop"},
        "no audience": {"aud": None},
        "another issuer": {"iss": "https://elsewhere.example"},
        "no user": {"sub": None},
    }
    for what, change in changes.items():
        bad.append({"name": f"ES256, {what}", "token": sign("ES256", **change)})
    for algorithm, key in (("HS512", secret), ("PS256", keys["RS256"]), ("RS512", keys["RS256"])):
        bad.append({"name": f"{algorithm}, which is not taken", "token": jwt.encode(claims(), key, algorithm=algorithm)})
    bad.append({"name": "alg none", "token": jwt.encode(claims(), None, algorithm="none")})
    public = keys["RS256"].public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for what, text in (("PEM", pem), ("JWK's modulus", published[0]["n"].encode())):
        header = {"alg": "HS256", "kid": f"RS256-{name}"}
        bad.append({"name": f"HS256 by the public key's {what}", "token": by_hand(header, claims(), text)})
    return {"library": f"PyJWT {jwt.__version__}", "jwks": {"keys": published}, "tokens": good + bad}


run(make)
