"""What the cases share: users of their own, sessions of those, pushes, and conditions that are waited for."""

import itertools
import json
import os
import time

from harness.api import api as call_api
from harness.api import token as make_token

from miop import codec
from miop.device import Device
from miop.session import PATIENCE_S, Session

_numbers = itertools.count(1)


def check(condition, why=""):
    if not condition:
        raise AssertionError(why)


def equal(got, wanted, what=""):
    if got != wanted:
        raise AssertionError(f"{what}: {got!r} where {wanted!r} was expected")


def wait_for(condition, what, patience=PATIENCE_S):
    """The first true answer of `condition`."""
    deadline = time.monotonic() + patience
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience} s in vain: {what}")
        time.sleep(0.02)
    return answer


class Lab:
    """One server's listener: `miop` is the address, `url` the API that belongs to it."""

    def __init__(self, miop, url, tls=None, server_hostname=None, before=b""):
        self.miop, self.url = miop, url
        self.tls, self.server_hostname, self.before = tls, server_hostname, before

    @classmethod
    def shared(cls):
        return cls(os.environ["TIDINGS_MIOP"], os.environ["TIDINGS_URL"])

    def api(self, method, path, body=None):
        return call_api(method, path, body, url=self.url)

    def person(self):
        """A user that no other case knows."""
        name = f"miop-py-{os.getpid()}-{next(_numbers)}"
        self.api("PUT", "/v1/users", {"users": [{"id": name, "name": name}]})
        return name

    def token(self, user):
        return token(user)

    def connect(self):
        return Session(self.miop, tls=self.tls, server_hostname=self.server_hostname, before=self.before)

    def bound(self, user, device_id="d1", **rest):
        """A session that is Live; its Bound frame is `session.terms`."""
        session = self.connect()
        session.terms = session.bind(token(user), device_id, **rest)
        return session

    def device(self, user, device_id="d1", **options):
        options = {"address": self.miop, "tls": self.tls, **options}
        return Device(token=lambda: token(user), device_id=device_id, **options)

    def push(self, user, body, **rest):
        """The number of a push to all devices of a user."""
        return self.api("POST", "/v1/push", {"to": {"users": [user]}, "type": "offer", "body": body, **rest})["push"]

    def state(self, push, user, device_id="d1"):
        """What became of a push on a device."""
        for row in self.api("GET", f"/v1/push/{push}/devices?limit=100")["devices"]:
            if row["user"] == user and row["device_id"] == device_id:
                return row["state"]
        return None

    def settled(self, push):
        """Waits until nobody is left that a push waits for, and answers with its counts."""
        def done():
            answer = self.api("GET", f"/v1/push/{push}")
            return answer if answer["state"] == "completed" else None
        return wait_for(done, f"push {push} is completed")

    def settled_by(self, device, numbers):
        """The same for several pushes, while the device goes on acknowledging what comes again."""
        left = list(numbers)

        def done():
            while left and self.api("GET", f"/v1/push/{left[0]}")["state"] == "completed":
                left.pop(0)
            return not left
        device.run_until(done, 120)

    def still_good(self):
        """The server serves a fresh session: bind, heartbeat, unbind."""
        with self.bound(self.person()) as session:
            equal(session.quiet(), [], "before a heartbeat's answer")


def token(user, **claims):
    return make_token(user, **claims)


def body_of(frame):
    return json.loads(frame.body)


def refused(session, *codes):
    """One fatal Error with one of the codes, then the end of the stream and nothing after it."""
    frames = session.until_end()
    check(frames, "the stream ended without an Error" + (" (reset)" if session.reset else ""))
    last = frames[-1]
    equal(last.name, "error", f"the last of {frames}")
    check(last.fatal, f"{last} is not fatal")
    check(last.code in codes, f"{last} where {' or '.join(codes)} was expected")
    check(all(f.kind != codec.ERROR for f in frames[:-1]), f"more than one Error: {frames}")
    equal(bytes(session.buffer), b"", "after the last frame")
    return last
