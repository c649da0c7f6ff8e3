"""Mutated frames against the server. What must become of each stream, the codec of ../python says, which was written
from docs/miop.md alone: which refusal, or which answers; sessions beside it must not notice.

TIDINGS_FUZZ_SEED and TIDINGS_FUZZ_STREAMS choose other streams, and more of them.
"""

import os
import pathlib
import platform
import random
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parents[1])]

import vectors  # noqa: E402
from harness.server import Server  # noqa: E402
from harness.tap import Tap  # noqa: E402
from lab import Lab, check, equal, token, wait_for  # noqa: E402
from miop import codec  # noqa: E402

SEED = int(os.environ.get("TIDINGS_FUZZ_SEED", "20260101"))
STREAMS = int(os.environ.get("TIDINGS_FUZZ_STREAMS", "600"))
EDGES = bytes([0x00, 0x01, 0x02, 0x06, 0x07, 0x09, 0x0A, 0x7F, 0x80, 0x81, 0xC0, 0xFE, 0xFF])
SERVER_ONLY = {codec.BOUND, codec.PUSH, codec.REDIRECT, codec.ERROR}
OF_A_PAYLOAD = {"malformed", "limit_exceeded"}
OF_A_BIND = {"unauthorized", "token_expired", "not_found", "invalid_field", "limit_exceeded", "cursor_invalid"}


def mutated(rng, data):
    """Some of what goes wrong with bytes."""
    data = bytearray(data)
    for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2, 8))):
        at = rng.randrange(len(data) + 1)
        what = rng.randrange(8)
        if what == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1 and at < len(data):
            data[at] = rng.choice(EDGES)
        elif what == 2:
            data[at:at] = bytes(rng.choice(EDGES) for _ in range(rng.randrange(1, 5)))
        elif what == 3:
            del data[at:at + rng.randrange(1, 5)]
        elif what == 4:
            end = at + rng.randrange(1, 20)
            data[at:at] = data[at:end]
        elif what == 5 and len(data) > 1:
            data[1] = (data[1] + rng.choice((-2, -1, 1, 2, 127))) % 256
        elif what == 6:
            del data[at:]
        elif what == 7:
            data[at:at] = rng.randbytes(rng.randrange(1, 40))
    return bytes(data)


class Outcome:
    """What the text says of a stream: the codes that may refuse it, or how it goes on."""

    def __init__(self):
        self.codes = set()    # refused with one of these
        self.ends = False     # an Unbind: the end without an Error
        self.waits = False    # part of a frame is left
        self.heartbeats = 0   # plain ones, each to be answered


def told(data, at, state, together=False):
    """Goes through the frames from `at` on; answers with the outcome, and where a Bind's own fate decides. `together`: of
    faulty frames that came together any may be the one that is refused (2.7), as it is behind a gateway."""
    out = Outcome()
    while True:
        limit = codec.FIRST_FRAME_MAX if state == "unbound" else codec.CLIENT_FRAME_MAX
        try:
            kind, length, start = codec.read_head(data, at, limit)
        except codec.Incomplete:
            out.waits = at < len(data)
            return out, None
        except codec.Refused as e:
            out.codes.add(e.code)
            return out, None
        end = start + length
        if end > len(data):
            out.waits = True
            return out, None
        payload, at = data[start:end], end
        if kind >= 0x80:
            continue
        fault, fields = set(), {}
        if state == "unbound" and kind != codec.BIND:
            fault = {"not_bound"}
        elif state != "unbound" and kind == codec.BIND:
            fault = {"already_bound"}
        elif kind in SERVER_ONLY:
            fault = {"malformed"}
        elif kind == codec.CHAT:
            continue
        else:
            try:
                fields = codec.read_fields(kind, payload)
            except codec.Refused:
                fault = OF_A_PAYLOAD
        if fault:
            out.codes |= fault
            if together and state != "unbound":
                continue
            return out, None
        if kind == codec.BIND:
            return out, at
        if kind == codec.UNBIND:
            out.ends = True
            return out, None
        if kind == codec.HEARTBEAT and "interval_s" not in fields:
            out.heartbeats += 1


class Fuzz:
    def __init__(self, lab, together):
        self.together = together
        self.lab, self.rng = lab, random.Random(SEED)
        self.user = lab.person()
        self.token = token(self.user)
        short = [v for _, v in vectors.all_vectors() if "kind" in v and len(v["hex"]) < 1500]
        self.bases = [bytes.fromhex(v["hex"]) for v in short]
        # What goes on when it comes to a bound session.
        self.ongoing = [bytes.fromhex(v["hex"]) for v in short if v["kind"] in ("heartbeat", "ack", "chat", "skip")]
        self.binds = [
            codec.bind(self.token, "fuzz", wants=2),
            codec.bind(self.token, "fuzz", device_kind="phone", app_version="1", wants=0, heartbeat_s=60),
            codec.bind(self.token, "fuzz-push"),
        ]
        self.refused = self.served = 0

    def stream(self):
        rng = self.rng
        parts = [mutated(rng, rng.choice(self.ongoing if rng.random() < 0.8 else self.bases)) for _ in range(rng.randrange(1, 5))]
        if rng.random() < 0.05:
            parts.append(rng.randbytes(rng.randrange(1, 2000)))
        return b"".join(parts)

    def one(self):
        rng = self.rng
        fresh = rng.random() < 0.5
        data = self.stream()
        if fresh and rng.random() < 0.7:
            bind = rng.choice(self.binds)
            data = (bind if rng.random() < 0.5 else mutated(rng, bind)) + data
        self.last = data
        session = self.lab.connect() if fresh else self.lab.bound(self.user, "fuzz", wants=2)
        with session:
            try:
                cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(3)))
                for begin, end in zip([0, *cuts], [*cuts, len(data)]):
                    session.send(data[begin:end])
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused already; what it said is read below
            self.judge(session, data, "unbound" if fresh else "live")

    def judge(self, session, data, state):
        outcome, following = told(data, 0, state, self.together)
        if following is not None:
            # The Bind's own fate, or that of what follows it at once: in Binding nothing may have been written yet.
            state = "live"
            outcome, _ = told(data, following, state, self.together)
            first = session.next()
            if first is None:
                check(outcome.ends, "the end after a Bind, without an Unbind")
                return
            if first.name == "error":
                check(first.fatal and first.code in OF_A_BIND | outcome.codes, f"{first}, not one of {outcome.codes}")
                equal(session.until_end(), [], "after the refusal of a Bind")
                self.refused += 1
                return
            equal(first.name, "bound", f"after a Bind, {first}")
        if outcome.codes and outcome.ends:
            # A gateway ends it at the Unbind, the core before that at the fault: whichever is first.
            frames = [f for f in session.until_end() if not (f.name == "error" and f.code in outcome.codes)]
        elif outcome.codes:
            self.refused += 1
            frames = session.until_end()
            check(frames and frames[-1].name == "error", f"no Error of {outcome.codes} but {frames}")
            check(frames[-1].fatal and frames[-1].code in outcome.codes, f"{frames[-1]}, not one of {outcome.codes}")
            frames.pop()
        elif outcome.ends:
            frames = session.until_end()
        elif outcome.waits or state == "unbound":
            session.finish()
            frames = session.until_end()
        else:
            self.served += 1
            session.send(codec.heartbeat())
            frames, wanted = [], outcome.heartbeats + 1
            while wanted:
                frame = session.next()
                check(frame is not None, f"the end where {wanted} heartbeats' answers were expected, after {frames}")
                frames.append(frame)
                wanted -= frame.kind == codec.HEARTBEAT and frame.get("interval_s") is None
        for frame in frames:
            check(frame.name in ("heartbeat", "chat", "error", "push"), frame)
            check(frame.name != "error" or not frame.fatal, f"a fatal Error that the text does not know of: {frame}")
        equal(bytes(session.buffer) if session.ended else b"", b"", "part of a frame at the end")


class At:
    """Names a case by the listener that it went through."""

    def __init__(self, tap, listener):
        self.tap, self.listener = tap, listener

    def case(self, name, what):
        return self.tap.case(f"{self.listener}: {name}", what)


def main():
    tap = Tap(f"MIOP by docs/miop.md, Python {platform.python_version()}, seed {SEED}")
    run(At(tap, "server"), Lab.shared(), together=False)
    link = {"link.secret": "the secret of core and gateway", "link.listen": "127.0.0.1:0"}
    with Server(settings=link) as core:
        attach = {"role": "gateway", "link.to": core.listeners["link"], "link.secret": link["link.secret"], "link.name": "fuzz"}
        with Server(settings=attach) as gateway:
            lab = Lab(gateway.miop, core.url)
            wait_for(lambda: attached(lab), "the gateway is attached")
            run(At(tap, "gateway"), lab, together=True)
    tap.end()


def attached(lab):
    with lab.connect() as session:
        session.send(codec.bind(token(lab.person()), "d1"))
        frame = session.next()
        return frame is not None and frame.name == "bound"


def run(tap, lab, together):
    fuzz = Fuzz(lab, together)
    beside = [lab.bound(lab.person(), "beside", heartbeat_s=1800) for _ in range(3)]
    everyone = [session.terms.user for session in beside]

    def batch():
        for number in range(STREAMS // 4):
            try:
                fuzz.one()
            except Exception as e:
                raise AssertionError(f"stream {number} of this part, seed {SEED}, {fuzz.last.hex()}: {e}") from e

    for part in range(4):
        tap.case(f"{STREAMS // 4} mutated streams are refused or answered as the text says, part {part + 1}", batch)

        def unharmed():
            push = lab.api("POST", "/v1/push", {"to": {"users": everyone}, "type": "text", "body": part})["push"]
            for session in beside:
                equal(session.expect(codec.PUSH).push, push, "what the sessions beside got")
                session.send(codec.ack([push]))
                equal(session.quiet(), [])
            lab.settled(push)
        tap.case(f"sessions beside part {part + 1} are unharmed", unharmed)
    tap.case("streams were refused and served", lambda: check(
        min(fuzz.refused, fuzz.served) >= STREAMS // 20, f"refused {fuzz.refused}, served {fuzz.served}"))

    def nobody_left():
        row = lab.api("GET", f"/v1/presence?users={fuzz.user}")["users"][0]
        return not row["devices"]
    tap.case("no session of theirs is left", lambda: wait_for(nobody_left, "all sessions are gone") and True)
    tap.case("the server serves a fresh session at the end", lab.still_good)
    for session in beside:
        session.sock.close()


if __name__ == "__main__":
    main()
