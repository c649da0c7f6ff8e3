"""States 3.2 to 3.5, Bind and Bound, heartbeats, and how sessions end."""

import json
import time

from lab import check, equal, refused, token, wait_for
from miop import codec


def run(tap, lab):
    user = lab.person()

    def terms():
        with lab.bound(user) as session:
            t = session.terms
            equal(t.version, 1, "version")
            equal(t.user, user, "user")
            check(0 < len(t.session.encode()) <= 64, t)
            check(10 <= t.heartbeat_s <= 1800, t)
            check(t.frame_bytes_max >= codec.FIRST_FRAME_MAX, t)
            check(t.cursor and len(t.cursor) <= 512, t)
            check(isinstance(json.loads(t.resume), dict), t)
    tap.case("Bound names version, session, user, heartbeat, limit, cursor and resume", terms)

    def without_chat():
        for wants in (0, 1):
            with lab.bound(user, wants=wants) as session:
                check("cursor" not in session.terms.fields and "resume" not in session.terms.fields, session.terms)
    tap.case("without chat Bound has no cursor and no resume", without_chat)

    def odd_binds():
        fields = [codec.raw_field(1, b"\x01"), codec.raw_field(2, token(user).encode()), codec.raw_field(3, b"d1")]
        for payload in (
            fields[2] + fields[1] + fields[0],
            codec.raw_field(0, b"") + fields[0] + codec.raw_field(0x7F, b"\xff\xff") + fields[1] + fields[2] + codec.raw_field(0x7F, b""),
            b"".join(fields) + codec.raw_field(7, b"\x81\x80\x80\x80\x80\x80\x80\x80\x80\x01"),
            b"".join(fields) + codec.raw_field(4, "телефон".encode()) + codec.raw_field(5, b""),
        ):
            with lab.connect() as session:
                session.send(codec.raw_frame(codec.BIND, payload))
                equal(session.expect(codec.BOUND).user, user, payload)
    tap.case("fields in any order, unknown fields, unknown bits of wants", odd_binds)

    def versions():
        for version in (2, 7, 2**64 - 1):
            with lab.bound(user, version=version) as session:
                equal(session.terms.version, 1)
    tap.case("a client of a later version is answered with version 1", versions)

    def refusals():
        for fields, codes in (
            ({"token": "not a token"}, ["unauthorized"]),
            ({"token": ""}, ["unauthorized"]),
            ({"token": token(user, key="another secret, long enough for HS256 to take")}, ["unauthorized"]),
            ({"token": token(user, seconds=-600)}, ["token_expired"]),
            ({"token": token(user + "-nobody")}, ["not_found"]),
            ({"device_id": ""}, ["invalid_field"]),
            ({"device_id": "a b"}, ["invalid_field"]),
            ({"device_id": "a/b"}, ["invalid_field"]),
            ({"device_id": "a~b"}, ["invalid_field"]),
            ({"device_id": "a\0b"}, ["invalid_field"]),
            ({"device_kind": ""}, ["invalid_field"]),
            ({"cursor": "what is no cursor"}, ["cursor_invalid"]),
        ):
            with lab.connect() as session:
                try:
                    session.send(codec.bind(**{"token": token(user), "device_id": "d1", **fields}))
                    error = refused(session, *codes)
                    equal(error.retry, False, "retry")
                    check(token(user) not in error.message, "the token stands in the message")
                except AssertionError as e:
                    raise AssertionError(f"{fields}: {e}") from None
    tap.case("a Bind is refused with the code of its fault", refusals)

    def longest_names():
        with lab.bound(user, "d" * 64, device_kind="k" * 32, app_version="v" * 32) as session:
            equal(session.quiet(), [])
    tap.case("names at their limits are taken", longest_names)

    def proposals():
        for proposal, granted in ((0, 10), (5, 10), (10, 10), (60, 60), (1800, 1800), (1801, 1800), (2**64 - 1, 1800)):
            with lab.bound(user, heartbeat_s=proposal) as session:
                equal(session.terms.heartbeat_s, granted, f"bind.heartbeat_s {proposal}")
                session.send(codec.heartbeat(proposal))
                equal(session.expect(codec.HEARTBEAT).get("interval_s"), granted, f"interval_s {proposal}")
                session.send(codec.heartbeat())
                equal(session.expect(codec.HEARTBEAT).fields, {}, "plain")
    tap.case("heartbeats: a proposal is brought within 10 to 1800, a plain one answered plainly", proposals)

    def pipelined():
        with lab.connect() as session:
            session.send(codec.bind(token(user), "d1") + codec.chat(b'{"t":"ping","ref":1}') + codec.heartbeat())
            session.expect(codec.BOUND)
            equal(sorted(session.next().name for _ in range(2)), ["chat", "heartbeat"])
            session.send(codec.unbind("done"))
            equal(session.until_end(), [])
    tap.case("what follows a Bind at once is answered after Bound", pipelined)

    def acked_in_binding():
        with lab.connect() as session:
            session.send(codec.bind(token(user), "d1") + codec.ack([1]) + codec.heartbeat())
            session.expect(codec.BOUND)
            equal(session.expect(codec.HEARTBEAT).fields, {}, "an Ack has no answer")
    tap.case("an Ack that follows a Bind at once is no fault", acked_in_binding)

    def bound_in_binding():
        with lab.connect() as session:
            session.send(codec.bind(token(user), "d1") + codec.bind(token(user), "d1"))
            refused(session, "already_bound")
    tap.case("a second Bind that follows at once is already_bound", bound_in_binding)

    def much_in_binding():
        with lab.connect() as session:
            session.send(codec.bind(token(user), "d1") + codec.raw_frame(0x80, b"x" * 65_000) + codec.heartbeat())
            session.expect(codec.BOUND)
            session.expect(codec.HEARTBEAT)
    tap.case("65000 bytes may follow a Bind at once", much_in_binding)

    def replaced():
        with lab.bound(user, "twice") as older, lab.bound(user, "twice") as newer, lab.bound(user, "else") as other:
            check(not refused(older, "replaced").retry, "retry")
            equal(newer.quiet(), [])
            equal(other.quiet(), [])
            check(newer.terms.session != older.terms.session, newer.terms)
    tap.case("a newer session of the same device ends the older with replaced", replaced)

    def too_many_of_a_kind():
        someone = lab.person()
        sessions = [lab.bound(someone, f"d{i}", device_kind="tv") for i in range(6)]
        with lab.bound(someone, "other", device_kind="phone") as other:
            refused(sessions[0], "replaced")
            for session in [*sessions[1:], other]:
                equal(session.quiet(), [])
        for session in sessions:
            session.sock.close()
    tap.case("of six sessions of one device_kind the oldest is ended with replaced", too_many_of_a_kind)

    def same_id_of_another():
        with lab.bound(user, "shared") as one, lab.bound(lab.person(), "shared") as other:
            equal(one.quiet() + other.quiet(), [])
    tap.case("the same device_id of another user is another device", same_id_of_another)

    def unbound():
        for reason in (None, "", "logged out", "r" * 512):
            with lab.bound(user) as session:
                session.send(codec.unbind(reason))
                equal(session.until_end(), [], "after an Unbind")
                check(not session.reset, "the connection was reset")
    tap.case("Unbind is answered with the end of the stream", unbound)

    def after_unbind():
        with lab.bound(user) as session:
            session.send(codec.unbind() + codec.heartbeat() * 10 + b"\x7f")
            equal(session.until_end(), [], "after an Unbind")
    tap.case("what comes after an Unbind is thrown away", after_unbind)

    def half_closed():
        with lab.bound(user) as session:
            session.finish()
            equal(session.until_end(), [], "after the client's end")
        with lab.connect() as session:
            session.finish()
            equal(session.until_end(), [], "after the end of a connection that did not bind")
    tap.case("the end of the client's stream ends the session without an Error", half_closed)

    def removed():
        someone = lab.person()
        with lab.bound(someone, "gone") as session:
            lab.api("DELETE", f"/v1/users/{someone}/devices/gone")
            refused(session, "kicked")
    tap.case("a device that the app's server removes is kicked", removed)

    def present():
        someone = lab.person()

        def online():
            return lab.api("GET", f"/v1/presence?users={someone}")["users"][0]
        with lab.bound(someone, "phone", device_kind="tv") as session:
            shown = wait_for(lambda: online() if online()["online"] else None, "the user is online")
            equal([(d["device_id"], d["device_kind"]) for d in shown["devices"]], [("phone", "tv")])
            session.send(codec.unbind())
            session.until_end()
        left = wait_for(lambda: online() if not online()["devices"] else None, "the device is gone")
        check(abs(left["last_seen"] / 1000 - time.time()) < 600, left)
    tap.case("presence follows Bind and Unbind", present)
