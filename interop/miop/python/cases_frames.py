"""What a server does with bytes: every vector on a fresh and on a bound connection, limits, parts, unknown kinds."""

import json
import os

import vectors
from lab import check, equal, refused, token
from miop import codec

SERVER_ONLY = {codec.BOUND, codec.PUSH, codec.REDIRECT, codec.ERROR}


def head_refusal(data, limit):
    """The code with which a head alone is refused, or None."""
    try:
        codec.read_head(data, 0, limit)
    except codec.Incomplete:
        pass
    except codec.Refused as e:
        return e.code
    return None


def on_fresh(lab, vector):
    """3.2: any other first frame than a Bind is `not_bound`, whatever is in it, unless its head is refused."""
    data = bytes.fromhex(vector["hex"])
    by_head = head_refusal(data, codec.FIRST_FRAME_MAX)
    with lab.connect() as session:
        session.send(data)
        if by_head:
            refused(session, by_head)
        elif data[0] == codec.BIND:
            refused(session, vector["error"])
        else:
            refused(session, "not_bound")


def on_bound(lab, user, vector):
    """3.4 and 2.7: what only servers send is `malformed`, a second Bind `already_bound`, all else by its fault."""
    data = bytes.fromhex(vector["hex"])
    with lab.bound(user) as session:
        session.send(data)
        by_head = head_refusal(data, session.terms.frame_bytes_max)
        if by_head:
            refused(session, by_head)
        elif data[0] in SERVER_ONLY:
            refused(session, "malformed")
        elif data[0] == codec.BIND:
            refused(session, "already_bound")
        else:
            refused(session, vector["error"])


def valid_on_bound(lab, user, vector):
    data, kind = bytes.fromhex(vector["hex"]), vector["kind"]
    with lab.bound(user) as session:
        session.send(data)
        if kind == "heartbeat":
            answer = session.expect(codec.HEARTBEAT)
            if "interval_s" in vector["fields"]:
                wanted = min(max(int(vector["fields"]["interval_s"]), 10), 1800)
                equal(answer.get("interval_s"), wanted, "granted")
            else:
                equal(answer.fields, {}, "the answer")
        elif kind in ("ack", "skip"):
            equal(session.quiet(), [], "an answer")
        elif kind == "chat":
            # What a server says has no `ref`, and is no operation of a client.
            if "ref" not in (json_object(vector) or {}):
                answer = session.chat_until(lambda a: a.get("t") == "error")
                check(answer.get("code"), answer)
            else:
                answer = json.loads(session.expect(codec.CHAT).payload)
                equal(answer.get("ref"), json_object(vector)["ref"], "ref")
        elif kind == "unbind":
            equal(session.until_end(), [], "after an Unbind")
        elif kind == "bind":
            refused(session, "already_bound")
        else:
            refused(session, "malformed")


def json_object(vector):
    try:
        return json.loads(bytes.fromhex(vector["fields"]["json_hex"]))
    except ValueError:
        return None


def every(lab, what, chosen):
    """Runs `what` for all vectors of the choice and tells all that failed."""
    wrong, count = [], 0
    for file, vector in vectors.all_vectors():
        if chosen(vector):
            count += 1
            try:
                what(vector)
            except Exception as e:  # noqa: BLE001 - all are told at the end
                wrong.append(f"{file}, {vector['name']}: {type(e).__name__}: {e}")
    check(count > 0, "no vector was chosen")
    check(not wrong, "\n".join(wrong))


def incomplete(lab, user, vector):
    """The server waits: nothing comes; the end of the stream is a lost connection, and what came of the frame is nothing."""
    with lab.bound(user) as session:
        session.send(bytes.fromhex(vector["hex"]))
        session.finish()
        equal(session.until_end(), [], "for a part of a frame")


def padded_bind(user, size):
    """A Bind whose payload has exactly `size` bytes, by an unknown field that readers skip."""
    fields = codec.write_fields(codec.BIND, {"version": 1, "token": token(user), "device_id": "d1"})
    for length in range(size - len(fields), 0, -1):
        payload = fields + codec.raw_field(0x70, b"x" * length)
        if len(payload) == size:
            return codec.raw_frame(codec.BIND, payload)
    raise AssertionError("no padding fits")


def run(tap, lab):
    run_codec(tap)
    run_server(tap, lab)


def run_codec(tap):
    for name in sorted({file for file, _ in vectors.all_vectors()}):
        tap.case(f"codec: all vectors of {name}", lambda: check(
            not (wrong := [f"{v['name']}: {w}" for f, v in vectors.all_vectors() if f == name for w in vectors.faults(v)]),
            "\n".join(wrong)))
    tap.case("codec: all valid vectors in one buffer", lambda: equal(vectors.one_buffer(), []))
    tap.case("codec: the worked examples of appendix B are vectors", lambda: equal(vectors.worked_examples(), []))
    tap.case("codec: numbers at every power of two", lambda: [
        equal(codec.read_number(codec.number(n), 0), (n, len(codec.number(n))))
        for bits in range(64) for n in (2**bits - 1, 2**bits, 2**bits + 1)])


def run_server(tap, lab):
    user = lab.person()
    tap.case("server: every invalid vector as the first frame", lambda: every(
        lab, lambda v: on_fresh(lab, v), lambda v: "error" in v))
    tap.case("server: every invalid vector on a bound connection", lambda: every(
        lab, lambda v: on_bound(lab, user, v), lambda v: "error" in v and "payload_max" not in v))
    tap.case("server: every valid vector on a bound connection", lambda: every(
        lab, lambda v: valid_on_bound(lab, user, v), lambda v: "kind" in v))
    tap.case("server: every incomplete vector, then the end of the stream", lambda: every(
        lab, lambda v: incomplete(lab, user, v), lambda v: "incomplete" in v))
    tap.case("a valid first frame of another kind is not_bound", lambda: every(
        lab, lambda v: on_fresh(lab, v),
        lambda v: v.get("kind") not in (None, "bind", "skip") and len(v["hex"]) < 2 * codec.FIRST_FRAME_MAX))

    def byte_by_byte():
        data = codec.bind(token(user), "d1") + codec.heartbeat() + codec.heartbeat(60) + codec.heartbeat()
        with lab.connect() as session:
            for i in range(len(data)):
                session.send(data[i:i + 1])
            session.expect(codec.BOUND)
            equal([session.expect(codec.HEARTBEAT).get("interval_s") for _ in range(3)], [None, 60, None])
    tap.case("frames that come byte by byte", byte_by_byte)

    def all_at_once():
        with lab.connect() as session:
            session.send(codec.bind(token(user), "d1") + codec.heartbeat() * 500 + codec.raw_frame(0x99, b"?" * 300) + codec.heartbeat(77))
            session.expect(codec.BOUND)
            for _ in range(500):
                equal(session.expect(codec.HEARTBEAT).fields, {})
            equal(session.expect(codec.HEARTBEAT).interval_s, 77)
    tap.case("a Bind and 501 heartbeats in one write are answered after Bound, each", all_at_once)

    def skipped_anywhere():
        odd = b"".join(codec.raw_frame(kind, os.urandom(kind)) for kind in range(0x80, 0x100))
        with lab.connect() as session:
            session.send(odd + codec.bind(token(user), "d1") + odd)
            session.expect(codec.BOUND)
            session.send(odd)
            equal(session.quiet(), [], "for kinds that are skipped")
    tap.case("kinds 80 to ff are skipped before the Bind, in Binding and in Live", skipped_anywhere)

    def unknown_kinds():
        for kind in [0, *range(0x0A, 0x80)]:
            with lab.connect() as session:
                session.send(bytes([kind]))
                refused(session, "malformed")
    tap.case("each unknown kind below 80 is refused by its first byte", unknown_kinds)

    def first_at_limit():
        with lab.connect() as session:
            session.send(padded_bind(user, codec.FIRST_FRAME_MAX))
            session.expect(codec.BOUND)
    tap.case("a Bind of 16384 bytes is taken", first_at_limit)

    def first_over_limit():
        with lab.connect() as session:
            session.send(padded_bind(user, codec.FIRST_FRAME_MAX + 1)[:4])
            refused(session, "limit_exceeded")
    tap.case("a Bind of 16385 bytes is refused by its head", first_over_limit)

    def skipped_at_limit():
        with lab.connect() as session:
            session.send(codec.raw_frame(0x80, b"x" * codec.FIRST_FRAME_MAX) * 3 + codec.bind(token(user), "d1"))
            session.expect(codec.BOUND)
        with lab.connect() as session:
            session.send(bytes([0x80]) + codec.number(codec.FIRST_FRAME_MAX + 1))
            refused(session, "limit_exceeded")
    tap.case("before the Bind an optional kind has the limit of a first frame", skipped_at_limit)

    def later_at_limit():
        with lab.bound(user) as session:
            most = session.terms.frame_bytes_max
            session.send(codec.raw_frame(0x80, b"x" * most))
            ping = json.dumps({"t": "ping", "ref": 9}).encode()
            session.send(codec.chat(ping + b" " * (most - len(ping))))
            equal(session.chat_until(lambda a: a.get("ref") == 9)["ref"], 9)
            session.send(bytes([codec.CHAT]) + codec.number(most + 1))
            refused(session, "limit_exceeded")
    tap.case("a later frame of frame_bytes_max is taken, one byte more refused by its head", later_at_limit)

    def acks():
        with lab.bound(user) as session:
            session.send(codec.ack(range(1, 1001)))
            session.send(codec.ack([]))
            equal(session.quiet(), [], "for an Ack")
            session.send(codec.ack(range(1, 1002)))
            refused(session, "limit_exceeded")
    tap.case("an Ack of 1000 unknown numbers changes nothing, of 1001 is refused", acks)

    def apart():
        with lab.bound(user, "apart") as other:
            with lab.connect() as session:
                session.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                refused(session, "malformed")
            equal(other.quiet(), [])
    tap.case("a refused connection leaves other sessions alone", apart)
