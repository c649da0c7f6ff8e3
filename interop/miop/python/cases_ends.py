"""What needs a server with settings of its own: deadlines, silence, a stop, a start anew, presence of a lost device."""

import json
import signal
import socket
import threading
import time

from harness.server import Server
from lab import Lab, check, equal, refused, wait_for
from miop import codec
from miop.device import Device
from relay import Relay

from cases_chat import house, texts


def lab_of(server, **options):
    return Lab(server.miop, server.url, **options)


def run(tap):
    with Server(settings={"session.bind_timeout_ms": 3000, "session.heartbeat_s_min": 2, "session.heartbeat_s_max": 100}) as server:
        lab = lab_of(server)
        user = lab.person()

        def bind_timeout():
            part = codec.bind("a.b.c", "d1")[:-1]
            sessions = [lab.connect() for _ in range(4)]
            for session, sent in zip(sessions, (b"", b"\x02", part, codec.raw_frame(0x80, b"x") * 50)):
                session.send(sent)
            for session in sessions:
                with session:
                    check(refused(session, "bind_timeout").retry, "retry")
        tap.case("a connection without a whole Bind within the deadline is ended with bind_timeout", bind_timeout)

        def other_limits():
            with lab.bound(user, heartbeat_s=1) as session:
                equal(session.terms.heartbeat_s, 2)
                session.send(codec.heartbeat(1000))
                equal(session.expect(codec.HEARTBEAT).interval_s, 100)
        tap.case("the interval is brought within the operator's limits", other_limits)

        def silence():
            with lab.bound(user, "silent", heartbeat_s=2) as silent:
                check(refused(silent, "heartbeat_timeout").retry, "retry")
            with lab.bound(user, "speaking", heartbeat_s=100) as silent:
                silent.send(codec.heartbeat(2))
                equal(silent.expect(codec.HEARTBEAT).interval_s, 2)
                refused(silent, "heartbeat_timeout")
        tap.case("silence ends a session, by the interval of the Bind and of a heartbeat", silence)

        def any_byte_counts():
            # One byte each half second of one long frame, until a silent session with the same interval, begun later, has ended.
            with lab.bound(user, "trickle", heartbeat_s=4) as trickle:
                ping = b'{"t":"ping","ref":1}'
                data = codec.chat(ping + b" " * 2000)
                at = 0
                with lab.bound(user, "silent-beside", heartbeat_s=4) as silent:
                    while not silent.ended:
                        trickle.send(data[at:at + 1])
                        at += 1
                        silent.more(time.monotonic() + 0.5)
                    refused(silent, "heartbeat_timeout")
                trickle.send(data[at:])
                equal(trickle.chat_until(lambda m: True).get("ref"), 1)
        tap.case("any byte of a client counts as a sign of life", any_byte_counts)

    def no_room():
        with Server(settings={"session.connections_max": 2}) as server:
            lab = lab_of(server)
            user = lab.person()
            with lab.bound(user, "a") as one, lab.bound(user, "b") as other:
                for _ in range(3):
                    with lab.connect() as third:
                        error = refused(third, "queue_full")
                        check(error.retry and error.retry_after_ms > 0, error)
                equal(one.quiet() + other.quiet(), [])
                other.send(codec.unbind())
                other.until_end()
                other.sock.close()

                def bound():
                    with lab.connect() as third:
                        try:
                            third.send(codec.bind(lab.token(user), "c"))
                        except ConnectionError:
                            return False
                        frame = third.next()
                        return frame is not None and frame.name == "bound"
                wait_for(bound, "there is room again")
    tap.case("without room a connection is told queue_full before it says anything; those that are bound stay", no_room)

    def stop():
        with Server() as server:
            lab = lab_of(server)
            user = lab.person()
            sessions = [lab.bound(user, f"d{i}", device_kind=f"k{i}") for i in range(8)]
            unbound = lab.connect()
            unbound.send(b"\x02")
            server.process.send_signal(signal.SIGTERM)
            times = []
            for session in sessions:
                frames = session.until_end()
                equal(frames[0].name, "redirect", frames)
                check(frames[0].get("address") is None, frames)
                check(all(f.name == "error" and f.code == "draining" and f.fatal for f in frames[1:]) and len(frames) <= 2, frames)
                check(not session.reset, "the connection was reset")
                times.append(frames[0].after_ms)
                session.sock.close()
            check(len(set(times)) > 1, f"all are told the same time: {times}")
            last = unbound.until_end()
            check(all(f.name in ("redirect", "error") for f in last), last)
            unbound.sock.close()
            wait_for(lambda: server.process.poll() is not None, "the server ends")
            equal(server.process.returncode, 0, "exit status")
    tap.case("a stop sends each session a Redirect with a time of its own, and an end", stop)

    def moved():
        with Server() as server, Relay(server.miop) as relay:
            lab = lab_of(server)
            ada, ben = lab.person(), lab.person()
            room = house(lab, [ada, ben])

            def send(i):
                lab.api("POST", "/v1/messages", {"conversation": room, "from": ada, "client_msg_id": f"m{i}", "body": {"text": f"{i}"}})
            device = lab.device(ben, "phone", address=relay.address)
            device.run_until(lambda: device.bound)
            send(0)
            kept = lab.push(ben, "acknowledged")
            device.run_until(lambda: texts(device.entries, room) == ["0"] and len(device.shown) == 1)
            lab.settled(kept)
            device.acknowledging = False
            lab.push(ben, "not acknowledged")
            device.run_until(lambda: len(device.shown) == 2)
            server.process.send_signal(signal.SIGTERM)
            device.run_until(lambda: device.redirects)
            server.stop()
            device.connect_at = 0
            server.start()
            lab.url, relay.target = server.url, server.miop
            send(1)
            lab.push(ben, "while away")
            device.acknowledging = True
            device.run_until(lambda: texts(device.entries, room) == ["0", "1"] and len(device.shown) == 3 and device.came_again, 120)
            equal([json.loads(f.body) for f in device.shown], ["acknowledged", "not acknowledged", "while away"])
            check(device.shown[1].push in device.came_again, device.came_again)
            lab.settled_by(device, [f.push for f in device.shown])
            check(set(device.addresses) == {relay.address}, device.addresses)
            device.leave()
    tap.case("a device lives through a stop and a start: chat resumes, an unacknowledged push comes again", moved)

    def crashed():
        with Server() as server, Relay(server.miop) as relay:
            lab = lab_of(server)
            ada, ben = lab.person(), lab.person()
            room = house(lab, [ada, ben])
            device = lab.device(ben, "phone", address=relay.address)
            device.run_until(lambda: device.bound)
            numbers = []
            for i in range(20):
                lab.api("POST", "/v1/messages", {"conversation": room, "from": ada, "client_msg_id": f"m{i}", "body": {"text": f"{i}"}})
                numbers.append(lab.push(ben, i))
            device.run_until(lambda: len(texts(device.entries, room)) >= 5 and len(device.shown) >= 5)
            server.kill()
            relay.target = None
            device.run_until(lambda: device.losses >= 2)
            server.start()
            relay.target = server.miop
            device.connect_at = 0
            device.run_until(lambda: len(texts(device.entries, room)) >= 20 and len(device.shown) >= 20, 120)
            equal(texts(device.entries, room), [f"{i}" for i in range(20)])
            equal(sorted(f.push for f in device.shown), sorted(numbers))
            lab.url = server.url
            lab.settled_by(device, numbers)
            device.leave()
    tap.case("a device lives through kill -9: every acknowledged message and push arrives, each once", crashed)


def cut_in_a_frame(tap, lab):
    def cut():
        user = lab.person()

        def devices():
            return lab.api("GET", f"/v1/presence?users={user}")["users"][0]["devices"]
        session = lab.bound(user)
        wait_for(devices, "the device is there")
        session.send(codec.chat(b"x" * 1000)[:500])
        session.cut()
        wait_for(lambda: not devices(), "the device that was cut inside a frame is gone")
    tap.case("a connection that is reset inside a frame ends the session", cut)


def played(listener, answers, held):
    """A server that gives each connection one answer, ends its own stream unless it is held, and reads on to the end."""
    def play():
        for answer in answers:
            sock, _ = listener.accept()
            sock.sendall(answer)
            if not held:
                sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
            sock.close()
    threading.Thread(target=play, daemon=True).start()


def client_rules(tap, lab):
    """What the text asks of a client (4.8, 5.5), with a server that the test plays itself."""
    def gone_silent():
        user = lab.person()
        bound = codec.write_frame(codec.BOUND, version=1, session="s", user=user, heartbeat_s=1, frame_bytes_max=65536)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            played(listener, [bound] * 2, held=True)
            device = Device("127.0.0.1:%d" % listener.getsockname()[1], lambda: lab.token(user), "d1", wants=1)
            device.answer_s = 1
            device.run_until(lambda: device.binds == 2)
            equal(device.errors + device.redirects, [])
            device.close()
    tap.case("client: a heartbeat without an answer makes it connect again", gone_silent)

    def elsewhere():
        user = lab.person()
        listener = socket.create_server(("127.0.0.1", 0))
        refuses = socket.create_server(("127.0.0.1", 0))
        nowhere = "127.0.0.1:%d" % refuses.getsockname()[1]
        refuses.close()
        home = "127.0.0.1:%d" % listener.getsockname()[1]
        answers = [
            codec.write_frame(codec.REDIRECT, address=lab.miop, after_ms=1),
            codec.write_frame(codec.REDIRECT, address=nowhere, after_ms=0)
            + codec.write_frame(codec.ERROR, code="draining", message="", retry=True, fatal=True),
            codec.write_frame(codec.REDIRECT, address=lab.miop, after_ms=0),
        ]

        played(listener, answers, held=False)
        device = Device(home, lambda: lab.token(user), "d1")
        device.run_until(lambda: device.bound)
        equal(device.addresses, [home, lab.miop])
        device.cut()
        device.run_until(lambda: device.bound)
        equal(device.addresses[2:], [home, nowhere, home, lab.miop], "after an address that holds for one attempt")
        device.leave()
        listener.close()
    tap.case("client: a Redirect's address holds for one attempt, then the configured one again", elsewhere)
