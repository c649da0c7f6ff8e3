"""What an app would hold: a device that stays bound. It keeps the cursor, acknowledges pushes once it has them, tells
those that it has seen, and connects again as section 7 of docs/miop.md says. One thread; `run_until` does the work."""

import json
import random
import select
import socket
import time

from . import codec
from .session import PATIENCE_S, connect

ANSWER_S = 10
"""5.5: who hears nothing for so long after a heartbeat takes the connection for lost."""
WAIT_FIRST_S, WAIT_MAX_S, LIVE_LONG_S = 1, 60, 60
"""Section 7."""

MENDING = {"malformed", "limit_exceeded", "invalid_field", "not_bound", "already_bound"}
ASK_THE_APP = {"forbidden", "not_found", "kicked"}


class Device:
    """`address` is where it is configured to connect; `token` makes a token; `kept` outlives the process of an app."""

    def __init__(self, address, token, device_id, wants=3, heartbeat_s=None, tls=None, kept=None, seed=0):
        self.address, self.token, self.device_id = address, token, device_id
        self.wants, self.heartbeat_s, self.tls = wants, heartbeat_s, tls
        self.kept = {"cursor": None, "seen": {}, "newest": {}} if kept is None else kept
        self.random = random.Random(seed)
        self.sock, self.bound, self.buffer = None, None, bytearray()
        self.wait_s, self.losses, self.connect_at, self.once_to = WAIT_FIRST_S, 0, 0.0, None
        self.given_up, self.answer_s = None, ANSWER_S
        self.acks, self.acknowledging = [], True
        # What happened, for tests and for the app.
        self.entries, self.shown, self.came_again, self.resumes = [], [], [], []
        self.redirects, self.errors, self.binds, self.addresses = [], [], 0, []

    # Connecting

    def open(self):
        address, self.once_to = self.once_to or self.address, None
        self.addresses.append(address)
        try:
            sock = connect(address)
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_hostname=address.rsplit(":", 1)[0].strip("[]"))
        except OSError:
            self.lost()
            return
        self.sock, self.buffer = sock, bytearray()
        self.heard = self.said = time.monotonic()
        self.asked = self.live_since = None
        try:
            self.say(codec.bind(
                self.token(), self.device_id, cursor=self.kept["cursor"] if self.wants & 2 else None,
                wants=None if self.wants == 3 else self.wants, heartbeat_s=self.heartbeat_s,
            ))
        except OSError:
            self.lost()

    def say(self, data):
        self.sock.sendall(data)
        self.said = time.monotonic()

    def close(self):
        if self.sock is not None:
            self.sock.close()
        self.sock = self.bound = None

    def lost(self):
        """At once the first time, then after a random time between 0 and w, which doubles."""
        if self.sock is not None and self.live_since is not None and time.monotonic() - self.live_since >= LIVE_LONG_S:
            self.wait_s, self.losses = WAIT_FIRST_S, 0
        self.close()
        delay = 0.0
        if self.losses > 0:
            delay = self.random.uniform(0, self.wait_s)
            self.wait_s = min(2 * self.wait_s, WAIT_MAX_S)
        self.losses += 1
        self.connect_at = time.monotonic() + delay

    def cut(self):
        """What a network does that goes away, seen from here."""
        self.sock.shutdown(socket.SHUT_RDWR)
        self.lost()

    def leave(self, reason=None):
        self.say(codec.unbind(reason))
        self.sock.shutdown(socket.SHUT_WR)
        while self.sock.recv(65536):
            pass
        self.close()
        self.given_up = "unbound"

    # Reading

    def take(self, frame):
        if frame.kind == codec.BOUND:
            self.bound, self.binds, self.live_since = frame, self.binds + 1, time.monotonic()
            self.interval_s = frame.heartbeat_s
            self.kept["cursor"] = frame.get("cursor", self.kept["cursor"])
            if frame.get("resume") is not None:
                self.resumes.append(json.loads(frame.resume))
        elif frame.kind == codec.HEARTBEAT:
            self.interval_s = frame.get("interval_s") or self.interval_s
        elif frame.kind == codec.PUSH:
            self.take_push(frame)
        elif frame.kind == codec.CHAT:
            self.take_chat(json.loads(frame.payload))
        elif frame.kind == codec.REDIRECT:
            self.redirects.append(frame)
            self.close()
            self.once_to = frame.get("address")
            self.connect_at = time.monotonic() + frame.after_ms / 1000
        elif frame.kind == codec.ERROR:
            self.take_error(frame)

    def take_push(self, frame):
        if frame.push in self.kept["seen"]:
            self.came_again.append(frame.push)
        else:
            self.kept["seen"][frame.push] = frame.expires_at
            key = frame.get("collapse_key")
            if key is None or frame.push > self.kept["newest"].get(key, -1):
                if key is not None:
                    self.kept["newest"][key] = frame.push
                self.shown.append(frame)
        self.acks.append(frame.push)

    def take_chat(self, message):
        if message.get("t") == "messages":
            self.entries += message.get("entries", [])
            if message.get("cursor"):
                self.kept["cursor"] = message["cursor"]

    def take_error(self, frame):
        self.errors.append(frame)
        if not frame.fatal:
            return
        self.close()
        if frame.code in MENDING | ASK_THE_APP or frame.code == "replaced":
            self.given_up = frame.code
        elif frame.code == "cursor_invalid":
            self.kept["cursor"] = None
            self.connect_at = time.monotonic()
        elif frame.code not in ("unauthorized", "token_expired") and not frame.retry and frame.code not in (
            "bind_timeout", "heartbeat_timeout", "slow_reader",
        ):
            self.given_up = frame.code
        elif frame.get("retry_after_ms") is not None:
            self.connect_at = time.monotonic() + frame.retry_after_ms / 1000
        else:
            self.lost()

    def read(self, wait_s):
        if not getattr(self.sock, "pending", lambda: 0)() and not select.select([self.sock], [], [], wait_s)[0]:
            return
        data = self.sock.recv(65536)
        if not data:
            self.lost()
            return
        self.heard, self.asked = time.monotonic(), None
        self.buffer += data
        while self.sock is not None:
            try:
                frame, end = codec.read_frame(self.buffer)
            except codec.Incomplete:
                break
            except codec.Refused as e:
                self.close()
                self.given_up = str(e)
                break
            del self.buffer[:end]
            self.take(frame)
        if self.sock is not None and self.acks and self.acknowledging:
            for begin in range(0, len(self.acks), 1000):
                self.say(codec.ack(self.acks[begin:begin + 1000]))
            self.acks = []

    def step(self, wait_s):
        now = time.monotonic()
        if self.sock is None:
            if now >= self.connect_at:
                self.open()
            else:
                time.sleep(min(wait_s, self.connect_at - now))
            return
        try:
            if self.bound is not None and now - self.said >= self.interval_s:
                self.say(codec.heartbeat())
                self.asked = self.asked or now
            if self.asked is not None and now - self.asked >= self.answer_s:
                self.lost()
                return
            self.read(wait_s)
        except OSError:
            self.lost()

    def run_until(self, done, patience=PATIENCE_S):
        """Works until `done()`; gives up with what happened when that takes longer than only a defect can."""
        deadline = time.monotonic() + patience
        while not done():
            if self.given_up:
                raise AssertionError(f"gave up with {self.given_up}: {self.errors}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"entries {len(self.entries)}, shown {len(self.shown)}, binds {self.binds}, "
                                   f"errors {self.errors}, redirects {self.redirects}")
            self.step(0.05)
