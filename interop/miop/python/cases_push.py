"""Section 6: pushes, acknowledgements, what comes again and what does not."""

import time

from lab import body_of, check, equal, wait_for
from miop import codec


def waiting(lab, user, bodies, **rest):
    """Pushes for a device that has bound once and is away."""
    with lab.bound(user):
        pass
    return [lab.push(user, body, **rest) for body in bodies]


def handed(session, count):
    return [session.expect(codec.PUSH) for _ in range(count)]


def run(tap, lab):
    def live():
        user = lab.person()
        body = {"id": 7, "text": "naïve ≥ ☕", "n": [1, 2.5, None, True]}
        with lab.bound(user) as session:
            number = lab.push(user, body, ttl_s=3600, collapse_key="offer", priority="high")
            frame = session.expect(codec.PUSH)
            equal((frame.push, frame.type, frame.priority, frame.collapse_key), (number, "offer", 1, "offer"))
            equal(body_of(frame), body)
            check(3000 < frame.expires_at / 1000 - time.time() <= 3700, frame)
            wait_for(lambda: lab.state(number, user) == "delivered", "the push is delivered")
            session.send(codec.ack([number]))
            wait_for(lambda: lab.state(number, user) == "acknowledged", "the push is acknowledged")
            equal(lab.settled(number)["counts"]["acknowledged"], 1)
    tap.case("a push reaches a bound device, with all fields, and is acknowledged", live)

    def defaults():
        user = lab.person()
        with lab.bound(user) as session:
            lab.api("POST", "/v1/push", {"to": {"users": [user]}, "body": "x" * 4000})
            frame = session.expect(codec.PUSH)
            equal((frame.type, frame.priority, frame.get("collapse_key"), body_of(frame)), ("text", 0, None, "x" * 4000))
    tap.case("a push without type, key and priority; a body of 4002 bytes", defaults)

    def every_device():
        user = lab.person()
        with lab.bound(user, "phone") as phone, lab.bound(user, "tv") as tv:
            number = lab.push(user, 1)
            equal([phone.expect(codec.PUSH).push, tv.expect(codec.PUSH).push], [number, number])
            phone.send(codec.ack([number]))
            wait_for(lambda: lab.state(number, user, "phone") == "acknowledged", "the phone's acknowledgement")
            check(lab.state(number, user, "tv") != "acknowledged", "the phone's Ack counted for the tv")
            tv.send(codec.ack([number]))
            lab.settled(number)
    tap.case("one number on every device of the user, acknowledged by each", every_device)

    def again():
        user = lab.person()
        with lab.bound(user) as session:
            first, second = lab.push(user, 1), lab.push(user, 2)
            equal({f.push for f in handed(session, 2)}, {first, second})
            session.send(codec.ack([first]))
            wait_for(lambda: lab.state(first, user) == "acknowledged", "the first is acknowledged")
            session.cut()
        for _ in range(2):
            with lab.bound(user) as session:
                frame = session.expect(codec.PUSH)
                equal((frame.push, body_of(frame)), (second, 2))
                equal(session.quiet(), [], "what was acknowledged")
        with lab.bound(user) as session:
            session.send(codec.ack([session.expect(codec.PUSH).push]))
            lab.settled(second)
        with lab.bound(user) as session:
            lab.push(user, 3)
            equal(body_of(session.expect(codec.PUSH)), 3, "after all was acknowledged")
    tap.case("what is not acknowledged comes again after a cut, what is does not", again)

    def away():
        user = lab.person()
        numbers = waiting(lab, user, [1, 2, 3])
        with lab.bound(user) as session:
            equal([f.push for f in handed(session, 3)], numbers)
            session.send(codec.ack(numbers))
            for number in numbers:
                lab.settled(number)
    tap.case("pushes wait for a device that is away, and come by their numbers", away)

    def high_first():
        user = lab.person()
        low = waiting(lab, user, [1, 2])
        high = [lab.push(user, body, priority="high") for body in (3, 4)]
        with lab.bound(user) as session:
            equal([f.push for f in handed(session, 4)], high + low)
    tap.case("of what waited, high priority goes first", high_first)

    def collapsed():
        user = lab.person()
        numbers = waiting(lab, user, [1, 2, 3], collapse_key="score")
        other = lab.push(user, 4)
        with lab.bound(user) as session:
            equal([(f.push, f.get("collapse_key")) for f in handed(session, 2)], [(numbers[2], "score"), (other, None)])
            wait_for(lambda: lab.state(numbers[0], user) == "collapsed", "the oldest is collapsed")
            session.send(codec.ack([numbers[2], other]))
            lab.settled(numbers[2])
    tap.case("of one collapse_key only the newest waits", collapsed)

    def expired():
        user = lab.person()
        short, = waiting(lab, user, [1], ttl_s=1)
        long = lab.push(user, 2)
        wait_for(lambda: lab.api("GET", f"/v1/push/{short}")["state"] == "expired", "the push is expired")
        with lab.bound(user) as session:
            equal(session.expect(codec.PUSH).push, long, "the only one that is left")
            equal(session.quiet(), [])
    tap.case("a push whose time is over is not handed out", expired)

    def in_parts():
        user = lab.person()
        numbers = waiting(lab, user, range(100))
        got, rounds = [], 0
        with lab.bound(user) as session:
            while len(got) < 100:
                part = [session.expect(codec.PUSH).push]
                part += [f.push for f in session.quiet()]
                got += part
                rounds += 1
                session.send(codec.ack(part))
        equal(got, numbers)
        check(rounds > 1, "100 pushes came in one part; docs/push.md says up to 32")
    tap.case("100 pushes that waited come in parts as they are acknowledged, in order, each once", in_parts)

    def unwanted():
        user = lab.person()
        with lab.bound(user, wants=2) as session:
            session.send(codec.ack([1]))
            error = session.expect(codec.ERROR)
            equal((error.code, error.fatal, error.retry), ("forbidden", False, False))
            equal(session.quiet(), [])
        number, = waiting(lab, user, [1])
        with lab.bound(user, wants=2) as session:
            equal(session.quiet(), [], "in a session that does not want pushes")
        with lab.bound(user, wants=1) as session:
            equal(session.expect(codec.PUSH).push, number)
    tap.case("a session that does not want pushes gets none, and forbidden for an Ack; they wait", unwanted)

    def foreign():
        mine, theirs = lab.person(), lab.person()
        with lab.bound(mine) as session, lab.bound(theirs) as other:
            number = lab.push(theirs, 1)
            other.expect(codec.PUSH)
            session.send(codec.ack([number, number, number + 1000, 0, 2**64 - 1]))
            equal(session.quiet(), [], "for a foreign Ack")
            check(lab.state(number, theirs) != "acknowledged", "a foreign Ack counted")
        with lab.bound(theirs) as other:
            equal(other.expect(codec.PUSH).push, number, "after a foreign Ack")
            other.send(codec.ack([number]) * 3)
            equal(other.quiet(), [], "for an Ack that is repeated")
            lab.settled(number)
    tap.case("an Ack of others' pushes, and an Ack repeated, change nothing", foreign)

    def not_before_bound():
        user = lab.person()
        waiting(lab, user, range(5))
        with lab.bound(user) as session:  # `bound` fails when anything comes before Bound
            equal(len(handed(session, 5)), 5)
    tap.case("Bound is the first frame, though pushes wait", not_before_bound)

    def cancelled():
        user = lab.person()
        gone, = waiting(lab, user, [1])
        lab.api("DELETE", f"/v1/push/{gone}")
        stays = lab.push(user, 2)
        with lab.bound(user) as session:
            equal(session.expect(codec.PUSH).push, stays)
    tap.case("a push that is cancelled does not come", cancelled)

    def a_device_stays():
        user = lab.person()
        device = lab.device(user, wants=1)
        device.run_until(lambda: device.bound)
        device.acknowledging = False
        numbers = [lab.push(user, 1)]
        device.run_until(lambda: len(device.shown) == 1)
        device.cut()
        device.acks = []
        numbers.append(lab.push(user, 2))
        device.run_until(lambda: len(device.shown) == 2 and device.came_again)
        equal((device.came_again, device.binds), (numbers[:1], 2))
        device.acknowledging = True
        device.acks = device.came_again + numbers[1:]
        numbers.append(lab.push(user, 3))
        device.run_until(lambda: len(device.shown) == 3)
        lab.settled_by(device, numbers)
        equal([f.push for f in device.shown], numbers, "each was shown once")
        device.leave()
    tap.case("a device shows each push once across a cut, and connects again by itself", a_device_stays)
