"""The same listener behind TLS, behind a balancer's PROXY header, and in a gateway's process."""

import os
import socket
import ssl
import struct
import subprocess
import time

import cases_chat
import cases_push
from harness.server import Server
from lab import Lab, body_of, check, equal, refused, token, wait_for
from miop import codec
from miop.session import PATIENCE_S, Session, connect, proxy_v2


def certificate(folder):
    """A key and a certificate for localhost that nobody else signed."""
    key, cert = str(folder / "key.pem"), str(folder / "cert.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
         "-out", cert, "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True)
    return key, cert


def trusting(cert, protocols=("miop/1",), version=None):
    context = ssl.create_default_context(cafile=cert)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    if version:
        context.minimum_version = context.maximum_version = version
    return context


class Renamed:
    """Takes some cases of another file, under a name that says through what they went."""

    def __init__(self, tap, through):
        self.tap, self.through = tap, through

    def case(self, name, check):
        return self.tap.case(f"{self.through}: {name}", check)


def run_tls(tap, folder):
    key, cert = certificate(folder)
    with Server(settings={
        "miop_tls_listen": "127.0.0.1:0", "tls.certificate_file": cert, "tls.key_file": key, "session.bind_timeout_ms": 4000,
    }) as server:
        listener = server.listeners["miop_tls"]
        lab = Lab(listener, server.url, tls=trusting(cert), server_hostname="localhost")
        user = lab.person()

        def chosen():
            with lab.bound(user) as session:
                equal(session.sock.selected_alpn_protocol(), "miop/1")
                equal(session.quiet(), [])
        tap.case("TLS: miop/1 is chosen by ALPN", chosen)

        def asks_for_nothing():
            for context in (trusting(cert, ()), trusting(cert, ("h2", "miop/1")),
                            trusting(cert, version=ssl.TLSVersion.TLSv1_2), trusting(cert, version=ssl.TLSVersion.TLSv1_3)):
                with Session(listener, tls=context, server_hostname="localhost") as session:
                    session.bind(token(user), "d1")
                    equal(session.quiet(), [])
        tap.case("TLS: 1.2, 1.3, a client that asks for nothing, and one that asks for others too", asks_for_nothing)

        def only_others():
            try:
                Session(listener, tls=trusting(cert, ("h2", "http/1.1")), server_hostname="localhost")
            except ssl.SSLError as e:
                check("application protocol" in str(e).lower().replace("_", " "), e)
            else:
                raise AssertionError("a client that asks only for other protocols was served")
        tap.case("TLS: a client that asks only for other protocols is refused", only_others)

        def old():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
            try:
                Session(listener, tls=context)
            except ssl.SSLError:
                return
            raise AssertionError("TLS 1.1 was taken")
        tap.case("TLS: 1.1 is refused", old)

        def handshake_in_the_deadline():
            with Session(listener) as plain, lab.connect() as session:
                refused(session, "bind_timeout")
                while not plain.ended:  # no hello came; there may be an alert of TLS before the end
                    check(plain.more(time.monotonic() + PATIENCE_S), "a connection without a hello stays open")
        tap.case("TLS: handshake and Bind must come within the deadline", handshake_in_the_deadline)

        def plain():
            with Session(listener) as session:
                session.send(codec.bind(token(user), "d1"))
                check(b"bound" not in session.sock.recv(65536), "a plain Bind was answered")
        tap.case("TLS: a plain Bind is not served there", plain)

        def bad_frame():
            with lab.bound(user) as session:
                session.send(b"\x7f")
                refused(session, "malformed")
        tap.case("TLS: an Error arrives before the end", bad_frame)

        def device():
            someone = lab.person()
            it = lab.device(someone, "tls-phone")
            it.run_until(lambda: it.bound)
            number = lab.push(someone, {"big": "x" * 4000})
            it.run_until(lambda: it.shown)
            it.cut()
            it.run_until(lambda: it.bound)
            lab.settled_by(it, [number])
            it.leave()
        tap.case("TLS: a device takes a push, is cut and comes again", device)
        cases_chat.run(Renamed(tap, "TLS"), lab)


def run_proxy(tap):
    with Server(settings={"proxy_protocol": "true", "proxy_protocol_from": "127.0.0.0/8", "log.level": "debug"}) as server:
        header = proxy_v2(("203.0.113.9", 5555), ("198.51.100.1", 8081))
        listener = Lab(server.miop, server.url, before=header)
        people = iter(people_behind_a_proxy(server, header, 4))
        user = next(people)

        def believed():
            with listener.bound(user) as session:
                equal(session.quiet(), [])
            wait_for(lambda: "203.0.113.9" in server.log(), "the client's address is in the log")
        tap.case("PROXY: a header in front of the first frame; its address is the client's", believed)

        def kinds():
            signature = header[:12]
            ipv6 = socket.inet_pton(socket.AF_INET6, "2001:db8::9") * 2 + struct.pack("!HH", 1, 2)
            tlv = b"\x04\x00\x03abc"
            for rest in (
                b"\x20\x00\x00\x00",
                b"\x21\x00\x00\x00",
                b"\x21\x21" + struct.pack("!H", len(ipv6)) + ipv6,
                b"\x21\x11" + struct.pack("!H", 12 + len(tlv)) + header[16:] + tlv,
            ):
                with Session(server.miop, before=signature + rest) as session:
                    session.bind(token(user), "d1")
                    equal(session.quiet(), [])
        tap.case("PROXY: LOCAL, UNSPEC, IPv6 and values after the addresses", kinds)

        line = b"PROXY TCP4 203.0.113.10 198.51.100.1 5555 8081\r\n"

        def text():
            with Session(server.miop, before=line) as session:
                session.bind(token(user), "d1")
                equal(session.quiet(), [])
            wait_for(lambda: "203.0.113.10" in server.log(), "the client's address is in the log")
        tap.case("PROXY: a line of version 1 in front of the first frame", text)

        def in_parts():
            for before in (header, line):
                data = before + codec.bind(token(user), "d1")
                with Session(server.miop) as session:
                    for i in range(len(data)):
                        session.send(data[i:i + 1])
                    session.expect(codec.BOUND)
        tap.case("PROXY: a header that comes byte by byte, with the Bind behind it", in_parts)

        def without():
            for before in (codec.bind(token(user), "d1"), b"PROXY UDP4 203.0.113.9 198.51.100.1 5555 8081\r\n" + codec.bind(token(user), "d1"),
                           header[:12] + b"\x11\x11\x00\x0c" + header[16:] + codec.bind(token(user), "d1")):
                with Session(server.miop) as session:
                    session.send(before)
                    equal([f for f in session.until_end() if f.name == "bound"], [], before)
        tap.case("PROXY: a connection without a header of either version is closed", without)

    with Server(settings={"proxy_protocol": "true", "proxy_protocol_from": "192.0.2.0/24"}) as server:
        def stranger():
            try:
                session = Session(server.miop, before=header + codec.bind(token("nobody"), "d1"))
            except ConnectionError:
                return  # it was closed before all of that was written
            with session:
                equal(session.until_end(), [])
        tap.case("PROXY: a header from a stranger is not believed", stranger)


def people_behind_a_proxy(server, header, count):
    """Users of a server whose HTTP listener wants the header too."""
    host, port = server.http.rsplit(":", 1)
    names = [f"miop-py-proxy-{os.getpid()}-{i}" for i in range(count)]
    body = ('{"users":[%s]}' % ",".join('{"id":"%s"}' % n for n in names)).encode()
    sock = connect(f"{host}:{port}")
    sock.sendall(header + b"PUT /v1/users HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nAuthorization: Bearer "
                 + server.api_key.encode() + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    answer = b""
    while data := sock.recv(65536):
        answer += data
    check(b" 200 " in answer[:40] or b" 204 " in answer[:40], answer)
    return names


def run_gateway(tap):
    secret = "a secret that core and gateways share, long enough"
    link = {"link.secret": secret, "link.listen": "127.0.0.1:0"}
    with Server(settings=link) as core:
        attach = {"role": "gateway", "link.to": core.listeners["link"], "link.secret": secret, "link.name": "east-1"}
        # A gateway needs no keys: it decides nothing.
        with Server(settings=attach) as gateway:
            lab = Lab(gateway.miop, core.url)

            def attached():
                def bind():
                    with lab.connect() as session:
                        session.send(codec.bind(token(user), "d1"))
                        frame = session.next()
                        return frame if frame is not None and frame.name == "bound" else None
                user = lab.person()
                wait_for(bind, "a session is bound behind the gateway")
                node = []

                def where():
                    node[:] = lab.api("GET", f"/v1/presence?users={user}")["users"][0]["devices"]
                    return node
                with lab.bound(user):
                    wait_for(where, "the device is there")
                    equal(node[0]["node"], "east-1")
            tap.case("gateway: a device binds through it", attached)

            import cases_bind
            import cases_frames
            through = Renamed(tap, "gateway")
            cases_frames.run_server(through, lab)
            cases_bind.run(through, lab)
            cases_push.run(through, lab)
            cases_chat.run(through, lab)

            def core_restarts():
                ann, bob = lab.person(), lab.person()
                with lab.bound(ann, "quiet", wants=1) as quiet, lab.bound(bob, "chatty") as chatty:
                    core.stop()
                    frames = chatty.until_end()
                    equal(frames[0].name, "redirect", frames)
                    quiet.send(codec.heartbeat())
                    quiet.expect(codec.HEARTBEAT)
                    with lab.connect() as meanwhile:
                        meanwhile.send(codec.bind(token(ann), "else"))
                        error = refused(meanwhile, "node_unavailable")
                        check(error.retry and error.get("retry_after_ms") is not None, error)
                    core.env["TIDINGS_LINK_LISTEN"] = attach["link.to"]
                    core.start()
                    lab.url = core.url
                    number = lab.push(ann, "after the restart")
                    frame = quiet.expect(codec.PUSH, 120)
                    equal((frame.push, body_of(frame)), (number, "after the restart"))
                    quiet.send(codec.ack([number]))
                    lab.settled(number)
            tap.case("gateway: while the core restarts, a device for pushes alone stays; one with chat is redirected", core_restarts)


def run(tap, folder):
    run_tls(tap, folder)
    run_proxy(tap)
    run_gateway(tap)
