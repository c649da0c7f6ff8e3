"""Against an echo that is built on the server's framing: the cases of the Autobahn test suite by their numbers, in our words.

The suite itself needs Python 2. Covered are its groups 1 to 5, 6 (all of Markus Kuhn's kinds of wrong UTF-8 and the cuts of
6.1 to 6.4; 6.5 to 6.23 as the sequences below), 7 and 10, and of 9 (sizes) 9.1 to 9.8 up to 4 MiB. Left out are 12 and 13:
they are about compression, which is declined.
"""

import random

from frames import BINARY, CLOSE, CONTINUE, PING, PONG, TEXT, close_payload, frame, noise

GREEK = "Hello-µ@ßöäüàá-UTF-8!!".encode()
KOSME = "κόσμε".encode()

# What Autobahn 6.5 to 6.21 takes for right, and for wrong.
VALID = [
    KOSME, b"\x00", b"\xc2\x80", b"\xe0\xa0\x80", b"\xf0\x90\x80\x80", b"\x7f", b"\xdf\xbf", b"\xef\xbf\xbf",
    b"\xf4\x8f\xbf\xbf", b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xef\xbf\xbd", b"\xef\xbf\xbe", b"\xef\xbb\xbf",
    b"\xf0\x9f\xbf\xbe", b"\xf0\x9f\xbf\xbf", b"\xf3\xbf\xbf\xbf",
]
INVALID = [
    KOSME + b"\xed\xa0\x80edited", b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80", b"\xf7\xbf\xbf\xbf",
    b"\xfb\xbf\xbf\xbf\xbf", b"\xfd\xbf\xbf\xbf\xbf\xbf", b"\xf4\x90\x80\x80", b"\x80", b"\xbf", b"\x80\xbf",
    b"\x80\xbf\x80\xbf\x80\xbf\x80", bytes(range(0x80, 0xC0)), b" ".join(bytes([n]) for n in range(0xC0, 0xE0)),
    b" ".join(bytes([n]) for n in range(0xE0, 0xF0)), b" ".join(bytes([n]) for n in range(0xF0, 0xF8)), b"\xc0",
    b"\xe0\x80", b"\xf0\x80\x80", b"\xf8\x80\x80\x80", b"\xdf", b"\xef\xbf", b"\xf7\xbf\xbf", b"\xfe", b"\xff",
    b"\xfe\xfe\xff\xff", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xc1\xbf", b"\xe0\x9f\xbf",
    b"\xf0\x8f\xbf\xbf", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xed\xad\xbf", b"\xed\xae\x80",
    b"\xed\xaf\xbf", b"\xed\xb0\x80", b"\xed\xbe\x80", b"\xed\xbf\xbf", b"\xed\xa0\x80\xed\xb0\x80",
    b"\xed\xaf\xbf\xed\xbf\xbf",
]


def run(tap, connect):
    def each(title, cases, check):
        def all_of_them():
            for case in cases:
                try:
                    check(*case)
                except Exception as error:
                    raise AssertionError(f"{str(case)[:200]}: {error!r}") from error

        tap.case(title, all_of_them)

    def echoed(opcode, payload, chunk=None):
        raw = connect(chunk)
        raw.write(frame(opcode, payload))
        raw.expect(opcode, payload)
        raw.write(frame(CLOSE, close_payload(1000)))
        raw.expect_close(1000)

    def refused(data, *codes, chunk=None, before=()):
        raw = connect(chunk)
        raw.write(data)
        for opcode, payload in before:
            raw.expect(opcode, payload)
        raw.expect_close(*(codes or (1002,)))

    edges = [0, 1, 2, 3, 4, 5, 6, 7, 8, 125, 126, 127, 128, 65_535, 65_536, 65_537, 70_000]
    each("1.1: texts of every class of length", [(TEXT, b"*" * n) for n in edges], echoed)
    each("1.2: binary messages of every class of length", [(BINARY, noise(n)) for n in edges], echoed)
    each("1.1.8, 1.2.8: the same in chunks of 997 bytes", [(TEXT, b"*" * 65_536, 997), (BINARY, noise(65_536), 997)], echoed)

    def every_length():
        raw = connect(None)
        for length in [*range(301), *range(65_520, 65_550)]:
            payload = noise(length)
            raw.write(frame(BINARY, payload))
            raw.expect(BINARY, payload)
        for key in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x37\xfa\x21\x3d"):
            raw.write(frame(BINARY, payload, key=key))
            raw.expect(BINARY, payload)

    tap.case("every length from 0 to 300 and around 65,536, each with a random key", every_length)

    def vectors():
        raw = connect(None)
        raw.write(bytes([0x81, 0x85, 0x37, 0xFA, 0x21, 0x3D, 0x7F, 0x9F, 0x4D, 0x51, 0x58]))
        raw.expect(TEXT, b"Hello")
        raw.write(bytes([0x89, 0x85, 0x37, 0xFA, 0x21, 0x3D, 0x7F, 0x9F, 0x4D, 0x51, 0x58]))
        raw.expect(PONG, b"Hello")
        # "Hel" and "lo", the two parts of 5.7, masked.
        raw.write(frame(TEXT, b"Hel", fin=False) + frame(CONTINUE, b"lo"))
        raw.expect(TEXT, b"Hello")

    tap.case("the examples of RFC 6455, 5.7", vectors)

    def pings():
        raw = connect(None)
        for payload in (b"", b"Hello, world!", bytes([0, 255, 254, 253, 252, 251, 0, 255]), b"\xfe" * 125):
            raw.write(frame(PING, payload))
            raw.expect(PONG, payload)
        raw.write(frame(PONG) + frame(PONG, b"nobody asked") + frame(PING, b"after"))
        raw.expect(PONG, b"after")
        raw.write(b"".join(frame(PING, b"%d" % n) for n in range(10)))
        for n in range(10):
            raw.expect(PONG, b"%d" % n)
        raw.chunk = 1
        for n in range(10):
            raw.write(frame(PING, b"%d" % n))
            raw.expect(PONG, b"%d" % n)

    tap.case("2.1 to 2.4, 2.6 to 2.11: pings and pongs", pings)
    each("2.5: a ping of 126 bytes", [(frame(PING, b"\xfe" * 126),), (frame(PONG, b"\xfe" * 126),)], refused)

    text = frame(TEXT, b"Hello")
    each(
        "3: reserved bits, alone and between messages, also byte by byte",
        [(frame(opcode, b"x", rsv=rsv),) for rsv in range(1, 8) for opcode in (TEXT, BINARY, CONTINUE, PING, CLOSE)],
        refused,
    )
    tap.case("3.2 to 3.4: what came before them is answered", lambda: [
        refused(text + frame(TEXT, b"x", rsv=2) + frame(PING), before=[(TEXT, b"Hello")], chunk=chunk) for chunk in (None, 1)
    ])
    each("4: reserved opcodes", [(frame(opcode, payload),) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15) for payload in (b"", b"x")], refused)
    tap.case("4.1.3, 4.2.3: what came before them is answered", lambda: [
        refused(text + frame(opcode) + frame(PING), before=[(TEXT, b"Hello")]) for opcode in (5, 13)
    ])

    each("5.1, 5.2: control frames in parts", [(frame(PING, b"x", fin=False) + frame(CONTINUE, b"y"),), (frame(PONG, b"x", fin=False) + frame(CONTINUE, b"y"),), (frame(CLOSE, b"", fin=False),)], refused)

    def parts():
        for chunk in (None, 1):
            raw = connect(chunk)
            raw.write(frame(TEXT, b"fragment1", fin=False) + frame(CONTINUE, b"fragment2"))
            raw.expect(TEXT, b"fragment1fragment2")
            raw.write(frame(TEXT, b"a", fin=False) + frame(PING, b"ping") + frame(CONTINUE, b"b"))
            raw.expect(PONG, b"ping")
            raw.expect(TEXT, b"ab")
            raw.write(b"".join([frame(BINARY, b"", fin=False)] + [frame(CONTINUE, b"", fin=False)] * 3 + [frame(CONTINUE)]))
            raw.expect(BINARY, b"")
            # 5.19, 5.20: five parts with two pings between.
            raw.write(frame(TEXT, b"1", fin=False) + frame(CONTINUE, b"2", fin=False) + frame(PING, b"p1"))
            raw.expect(PONG, b"p1")
            raw.write(frame(CONTINUE, b"3", fin=False) + frame(CONTINUE, b"4", fin=False) + frame(PING, b"p2") + frame(CONTINUE, b"5"))
            raw.expect(PONG, b"p2")
            raw.expect(TEXT, b"12345")

    tap.case("5.3 to 5.8, 5.19, 5.20: messages in parts, with pings between", parts)
    lone = frame(CONTINUE, b"non-continuation payload")
    each(
        "5.9 to 5.18: parts of nothing, and a message within a message",
        [
            (lone + text,), (frame(CONTINUE, b"x", fin=False) + text,),
            (frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"),), (frame(BINARY, b"a", fin=False) + frame(TEXT, b"b", fin=False),),
        ],
        refused,
    )
    tap.case("5.15: a part after the last one", lambda: refused(
        frame(TEXT, b"1", fin=False) + frame(CONTINUE, b"2") + frame(CONTINUE, b"3", fin=False) + frame(TEXT, b"4"),
        before=[(TEXT, b"12")],
    ))

    def text_comes(data, payload, chunk=None):
        raw = connect(chunk)
        raw.write(data)
        raw.expect(TEXT, payload)

    each("6.1: empty texts, whole and in parts", [
        (frame(TEXT), b""), (frame(TEXT, b"", fin=False) + frame(CONTINUE, b"", fin=False) + frame(CONTINUE), b""),
        (frame(TEXT, b"", fin=False) + frame(CONTINUE, b"middle frame payload", fin=False) + frame(CONTINUE), b"middle frame payload"),
    ], text_comes)

    def cut_everywhere():
        for payload in (GREEK, KOSME):
            text_comes(frame(TEXT, payload), payload)
            text_comes(frame(TEXT, payload), payload, chunk=1)
            raw = connect(None)
            for cut in range(len(payload) + 1):
                raw.write(frame(TEXT, payload[:cut], fin=False) + frame(CONTINUE, payload[cut:]))
                raw.expect(TEXT, payload)
            single = [frame(TEXT, b"", fin=False)] + [frame(CONTINUE, bytes([byte]), fin=False) for byte in payload]
            raw.write(b"".join(single) + frame(CONTINUE))
            raw.expect(TEXT, payload)

    tap.case("6.2: characters cut by parts at every byte", cut_everywhere)
    wrong = KOSME + b"\xf4\x90\x80\x80" + b"edited"
    each("6.3: wrong UTF-8, whole, in parts of a byte and byte by byte", [
        (frame(TEXT, KOSME + b"\xed\xa0\x80edited"), None),
        (b"".join(frame(TEXT if not n else CONTINUE, bytes([b]), fin=n == len(wrong) - 1) for n, b in enumerate(wrong)), None),
        (frame(TEXT, wrong), 1),
    ], lambda data, chunk: refused(data, 1007, chunk=chunk))

    def fails_fast(first, second):
        # The message has not ended: it is refused for what cannot become right any more.
        refused(frame(TEXT, first, fin=False) + frame(CONTINUE, second, fin=False), 1007)

    each("6.4: wrong UTF-8 is refused with the part that it stands in", [
        (KOSME, b"\xf4\x90\x80\x80"), (KOSME + b"\xf4", b"\x90"), (b"", b"\xff"), (b"\xe0", b"\x80"),
    ], fails_fast)
    each("6.5 to 6.7, 6.9, 6.22, 6.23: UTF-8 at its edges", [(TEXT, payload) for payload in VALID], echoed)
    each("6.5 to 6.21: wrong UTF-8", [(payload,) for payload in INVALID], lambda payload: refused(frame(TEXT, payload), 1007))
    each("6.x: wrong UTF-8 at every place of a long text", [(at,) for at in (0, 1, 7, 8, 63, 64, 65, 4_095, 9_999)],
         lambda at: refused(frame(TEXT, b"x" * at + b"\xff" + b"x" * (9_999 - at)), 1007))

    def closes(payload, *codes):
        raw = connect(None)
        raw.write(frame(CLOSE, payload) + frame(PING, b"late") + frame(TEXT, b"late"))
        raw.expect_close(*codes)

    tap.case("7.1: a goodbye ends it, whatever follows", lambda: closes(close_payload(1000), 1000))
    tap.case("7.1.2: two goodbyes", lambda: (lambda raw: (raw.write(frame(CLOSE, close_payload(1000)) * 2), raw.expect_close(1000)))(connect(None)))
    tap.case("7.1.6: a goodbye behind a long message", lambda: (lambda raw: (
        raw.write(frame(TEXT, b"B" * 262_144) + frame(CLOSE, close_payload(1000)) + frame(PING)),
        raw.expect(TEXT, b"B" * 262_144), raw.expect_close(1000)))(connect(None)))
    each("7.3.1, 7.3.3 to 7.3.5: nothing, a code, a code and a reason", [
        (b"", None), (close_payload(1000), 1000), (close_payload(1000, b"Hello World!"), 1000), (close_payload(1000, b"*" * 123), 1000),
    ], closes)
    each("7.3.2: half a code", [(b"a", 1002)], closes)
    tap.case("7.3.6: a reason of 124 bytes", lambda: refused(frame(CLOSE, close_payload(1000, b"*" * 124))))
    tap.case("7.5.1: a reason that is not UTF-8", lambda: closes(close_payload(1000, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xed\xa0\x80"), 1007))
    good = [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999]
    each("7.7: codes that may be sent are answered with themselves", [(close_payload(code), code) for code in good], closes)
    bad = [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999]
    each("7.9: codes that must not be sent are not repeated", [(close_payload(code), 1002) for code in bad], closes)
    each("7.13: nor those that nobody has defined", [(close_payload(code), 1002) for code in (5000, 65_535)], closes)

    each("9.1, 9.2: messages up to 4 MiB", [(opcode, b"*" * size) for opcode in (TEXT, BINARY) for size in (1 << 16, 1 << 18, 1 << 20, 1 << 22)], echoed)

    def in_parts_of(size, opcode):
        whole = b"*" * (1 << 20)
        chunks = [whole[n : n + size] for n in range(0, len(whole), size)]
        raw = connect(None)
        raw.write(b"".join(frame(CONTINUE if n else opcode, chunk, fin=n == len(chunks) - 1) for n, chunk in enumerate(chunks)))
        raw.expect(opcode, whole)

    each("9.3, 9.4: 1 MiB in parts of 64 bytes and more", [(size, opcode) for size in (64, 1_024, 65_536) for opcode in (TEXT, BINARY)], in_parts_of)
    each("9.5, 9.6: 1 MiB in chunks of 64 bytes and more", [(opcode, b"*" * (1 << 20), size) for size in (64, 2_048) for opcode in (TEXT, BINARY)], echoed)

    def many(opcode, length):
        raw = connect(None)
        for _ in range(1_000):
            payload = b"*" * length
            raw.write(frame(opcode, payload))
            raw.expect(opcode, payload)

    each("9.7, 9.8: a thousand small messages", [(TEXT, 0), (BINARY, 16), (TEXT, 125), (BINARY, 126)], many)
    tap.case("10.1.1: a text of 65,536 bytes in parts of 1,300", lambda: (lambda raw, whole: (
        raw.write(b"".join(frame(TEXT if not n else CONTINUE, whole[n : n + 1300], fin=n + 1300 >= len(whole)) for n in range(0, len(whole), 1300))),
        raw.expect(TEXT, whole)))(connect(None), b"*" * 65_536))

    each("frames without a mask", [(frame(TEXT, b"x", mask=False),), (frame(PING, b"", mask=False),), (frame(CLOSE, b"", mask=False),)], refused)
    each("a length with its highest bit set", [(frame(BINARY, b"", length=1 << 63, length_bytes=8), 1002, 1009), (frame(BINARY, b"", length=(1 << 64) - 1, length_bytes=8), 1002, 1009)], refused)

    def shuffled():
        # Parts, pings and chunks at random: what comes back is what was sent, in its order.
        for seed in range(20):
            dice = random.Random(seed)
            raw = connect(dice.choice([None, 1, 2, 3, 5, 7, 64]))
            sent, data = [], b""
            for _ in range(10):
                payload = noise(dice.choice([0, 1, 5, 125, 126, 200]))
                left, opcode = payload, BINARY
                while True:
                    cut = dice.randint(0, len(left))
                    data += frame(opcode, left[:cut], fin=cut == len(left))
                    done, left, opcode = cut == len(left), left[cut:], CONTINUE
                    if dice.random() < 0.3:
                        ping = noise(dice.randint(0, 20))
                        data += frame(PING, ping)
                        sent.append((PONG, ping)) if not done else sent.extend([(BINARY, payload), (PONG, ping)])
                    elif done:
                        sent.append((BINARY, payload))
                    if done:
                        break
            raw.write(data)
            for opcode, payload in sent:
                raw.expect(opcode, payload)

    tap.case("parts, pings and chunks at random", shuffled)
