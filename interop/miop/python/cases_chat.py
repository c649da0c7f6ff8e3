"""Chat over MIOP: 4.6, and the resume from the cursor that 4.2 and 4.3 speak of."""

import json

from lab import check, equal, token, wait_for
from miop import codec


def house(lab, people):
    """A group of these people; the first owns it."""
    name = "house-" + people[0]
    lab.api("POST", "/v1/conversations", {"id": name, "kind": "group", "owner": people[0], "members": people[1:]})
    return name


def texts(entries, conversation):
    return [e["body"]["text"] for e in entries if e["conversation"] == conversation and e["kind"] == "message"]


def received(session, conversation, count):
    """Entries of a conversation until there are `count` messages; the newest cursor stays in `session.cursor`."""
    entries = []
    while len(texts(entries, conversation)) < count:
        message = session.chat_until(lambda m: m.get("t") == "messages")
        entries += message["entries"]
        session.cursor = message.get("cursor", getattr(session, "cursor", None))
    return entries


def sent(session, t="send", **message):
    """Sends, and answers with what became of it: one of the `results` of a `sent`, or an `error`."""
    session.ref += 1
    session.say(t=t, ref=session.ref, **message)

    def mine(answer):
        return [r for r in answer.get("results", [answer]) if r.get("ref") == session.ref]
    return mine(session.chat_until(mine))[0]


class Growing:
    """A message that grows, as a client puts it together from entries and chunks. Offsets count bytes."""

    def __init__(self, conversation, seq):
        self.place, self.text, self.mark, self.chunks = (conversation, seq), None, None, 0

    def take(self, frame):
        conversation, seq = self.place
        for entry in frame.get("entries", []):
            is_mine = seq in (entry["seq"], entry.get("target")) and entry["conversation"] == conversation
            if is_mine and entry["kind"] in ("message", "edit"):
                self.text, self.mark = entry["body"]["text"].encode(), entry.get("stream")
        if frame["t"] == "stream" and (frame["conversation"], frame["seq"]) == self.place:
            self.chunks += 1
            known = len(self.text) - frame["offset"]
            check(known >= 0, f"bytes {len(self.text)} to {frame['offset']} are missing")
            self.text += frame["text"].encode()[known:]

    def until(self, session, text, mark):
        while (self.text, self.mark) != (text.encode(), mark):
            self.take(session.chat_until(lambda frame: True))


def run(tap, lab):
    ada, ben = lab.person(), lab.person()
    group = house(lab, [ada, ben])

    def there_and_back():
        with lab.bound(ada) as one, lab.bound(ben) as other:
            first = sent(one, conversation=group, client_msg_id="m1", body={"text": "naïve ≥ ☕"})
            check(first["seq"] > 0 and not first.get("duplicate"), first)
            entry = [e for e in received(other, group, 1) if e["kind"] == "message"][0]
            equal((entry["from"], entry["seq"], entry["body"]), (ada, first["seq"], {"text": "naïve ≥ ☕"}))
            again = sent(one, conversation=group, client_msg_id="m1", body={"text": "naïve ≥ ☕"})
            equal((again["seq"], again["duplicate"]), (first["seq"], True), "a retry")
            direct = sent(other, to=ada, client_msg_id="m1", body={"text": "hi"})
            equal(direct["seq"], 1, direct)
            received(one, direct["conversation"], 1)
    tap.case("a message goes to the other device; a retry answers with the first result", there_and_back)

    def in_order():
        cid, dee = lab.person(), lab.person()
        room = house(lab, [cid, dee])
        with lab.bound(cid) as one, lab.bound(dee) as other:
            for i in range(200):
                one.say(t="send", ref=i, conversation=room, client_msg_id=f"n{i}", body={"text": f"{i}"})
            entries = received(other, room, 200)
            equal(texts(entries, room), [f"{i}" for i in range(200)])
            numbers = [e["seq"] for e in entries if e["conversation"] == room]
            equal(numbers, list(range(numbers[0], numbers[0] + len(numbers))), "seq")
    tap.case("200 pipelined messages arrive in order, without a hole", in_order)

    def refused_operations():
        with lab.bound(ada) as session:
            for message in (
                {"t": "send", "conversation": "no-such-house", "client_msg_id": "x", "body": {"text": "x"}},
                {"t": "send", "client_msg_id": "y", "body": {"text": "x"}},
                {"t": "what nobody knows"},
            ):
                session.ref += 1
                session.say(ref=session.ref, **message)
                answer = session.chat_until(lambda a: a.get("ref") == session.ref)
                equal(answer["t"], "error", message)
                check(answer["code"] and answer["message"], answer)
            for bad in (b"", b"not json", b"\xff\x00", b"[]", b"{", b"null", b"[" * 5000, b'{"t":"ping"', b'{"t":5}', b'{"ref":1}'):
                session.send(codec.chat(bad))
                answer = session.chat_until(lambda a: a.get("t") == "error")
                check(answer["code"], answer)
            for bad, code in ((b'{"ref":77,"t":5}', "invalid_field"), (b'{"ref":78,"t":"send","to":5,"body":1}', "invalid_field"),
                              (b'{"ref":79,"t":"ping"', "malformed")):
                session.send(codec.chat(bad))
                answer = session.chat_until(lambda a: a.get("t") == "error")
                equal((answer.get("ref"), answer["code"]), (json.loads(bad[7:9]), code), bad)
            equal(session.ask("ping")["ref"], session.ref, "the session goes on")
    tap.case("a refused operation and unreadable JSON are answered in a chat frame; the session goes on", refused_operations)

    def before_unbind():
        kim = lab.person()
        room = house(lab, [kim, ben])
        sends = b"".join(codec.chat(json.dumps({
            "t": "send", "ref": i, "conversation": room, "client_msg_id": f"u{i}", "body": {"text": f"{i}"}}).encode()) for i in range(20))
        with lab.connect() as session:
            session.send(codec.bind(token(kim), "d1") + sends + codec.unbind("written and gone"))
            check(all(f.name in ("bound", "chat") for f in session.until_end()), "an Error")

        def stored():
            return texts(lab.api("GET", f"/v1/conversations/{room}/messages?limit=100")["entries"], room)
        wait_for(lambda: len(stored()) >= 20, "what was sent before an Unbind is stored")
        equal(stored(), [f"{i}" for i in range(20)])
    tap.case("what was sent before an Unbind is carried out", before_unbind)

    def own_frames():
        with lab.bound(ada) as session:
            for t in ("bind", "bound", "ack", "push", "unbind", "reconnect"):
                answer = session.ask(t, token="x", device_id="d1", pushes=[1])
                equal((answer["t"], answer["code"]), ("error", "malformed"), t)
            equal(session.quiet(), [])
    tap.case("operations that have frames of their own are malformed as chat", own_frames)

    def unwanted():
        with lab.bound(ada, wants=1) as session:
            session.send(codec.chat(b'{"t":"ping","ref":1}'))
            error = session.expect(codec.ERROR)
            equal((error.code, error.fatal), ("forbidden", False))
            lab.api("POST", "/v1/messages", {"conversation": group, "from": ben, "client_msg_id": "unheard", "body": {"text": "x"}})
            equal(session.quiet(), [])
    tap.case("a session that does not want chat gets none, and forbidden for a Chat frame", unwanted)

    def resumed():
        eve, fay = lab.person(), lab.person()
        room = house(lab, [eve, fay])

        def send(i):
            lab.api("POST", "/v1/messages", {"conversation": room, "from": eve, "client_msg_id": f"r{i}", "body": {"text": f"{i}"}})
        got = []
        with lab.bound(fay) as session:
            for i in range(10):
                send(i)
            got += texts(received(session, room, 10), room)
            cursor = session.cursor
            session.cut()
        for i in range(10, 60):
            send(i)
        with lab.bound(fay, cursor=cursor) as session:
            resume = json.loads(session.terms.resume)
            equal(resume.get("complete"), True, resume)
            got += texts(received(session, room, 50), room)
            send(60)
            got += texts(received(session, room, 1), room)
        equal(got, [f"{i}" for i in range(61)])
        with lab.bound(fay, cursor=session.cursor) as session:
            equal(json.loads(session.terms.resume).get("complete"), True)
            equal(session.ask("ping")["ref"], session.ref)
            equal([f for f in session.put_aside if json.loads(f.payload).get("t") == "messages"], [], "with nothing missed")
    tap.case("a resume from the cursor brings what was missed, each once, then what is new", resumed)

    def devices_converge():
        gus, hal = lab.person(), lab.person()
        room = house(lab, [gus, hal])
        phone, tablet = lab.device(hal, "phone"), lab.device(hal, "tablet")
        with lab.bound(gus) as writer:
            for device in (phone, tablet):
                device.run_until(lambda: device.bound)
            for i in range(90):
                writer.say(t="send", ref=i, conversation=room, client_msg_id=f"c{i}", body={"text": f"{i}"})
                if i % 30 == 29:
                    phone.run_until(lambda: len(texts(phone.entries, room)) > i - 20)
                    phone.cut()
            for device in (phone, tablet):
                device.run_until(lambda: len(texts(device.entries, room)) >= 90)
                equal(texts(device.entries, room), [f"{i}" for i in range(90)], device.device_id)
        phone.run_until(lambda: phone.bound)
        equal((phone.binds, tablet.binds), (4, 1))
        check(all(r.get("complete") for r in phone.resumes), phone.resumes)
        phone.leave("done")
        tablet.leave()
    tap.case("a device that is cut three times has the same messages as one that is not", devices_converge)

    def growing():
        kay, lou = lab.person(), lab.person()
        room = house(lab, [kay, lou])
        with lab.bound(kay) as one, lab.bound(lou) as other:
            begun = sent(one, "stream_begin", conversation=room, client_msg_id="s1", body={"text": "", "model": "m"})
            message, text = Growing(room, begun["seq"]), ""
            place = {"conversation": room, "seq": begun["seq"]}
            for word in ("naïve ", "≥ ", "☕"):
                chunk = {"offset": len(text.encode()), "text": word, **place}
                text += word
                for _ in range(2):
                    answer = one.ask("stream_append", **chunk)
                    equal((answer["t"], answer["offset"]), ("appended", len(text.encode())), "a chunk, and its retry")
            message.until(other, text, "open")
            check(message.chunks > 0, "the text came without a stream frame")
            gap = one.ask("stream_append", offset=99, text="x", **place)
            equal((gap["t"], gap["code"]), ("error", "conflict"), gap)
            equal(other.ask("stream_append", offset=0, text="", **place)["code"], "forbidden", "another user's message")
            # A device that comes in the middle gets what there is, and then the rest.
            with lab.bound(lou, device_id="tablet") as late:
                page = late.ask("history", conversation=room, from_seq=begun["seq"])
                half = Growing(room, begun["seq"])
                half.take(page)
                equal((half.text, half.mark), (text.encode(), "open"))
                one.ask("stream_append", offset=len(text.encode()), text=" more", **place)
                text += " more"
                ended = sent(one, "stream_end", **place)
                for session, view in ((late, half), (other, message)):
                    view.until(session, text, None)
            again = sent(one, "stream_end", **place)
            equal((again["seq"], again["duplicate"]), (ended["seq"], True), "a repeated end")
            equal(one.ask("stream_append", offset=0, text="", **place)["code"], "stream_ended")
    tap.case("a message grows over MIOP: chunks in stream frames, and the whole text with its end", growing)

    def broken_off():
        may, ned = lab.person(), lab.person()
        room = house(lab, [may, ned])
        with lab.bound(ned) as other:
            with lab.bound(may) as one:
                begun = sent(one, "stream_begin", conversation=room, client_msg_id="s1", body={"text": "half"})
                one.ask("stream_append", conversation=room, seq=begun["seq"], offset=4, text=" of it")
                one.cut()
            Growing(room, begun["seq"]).until(other, "half of it", "interrupted")
    tap.case("the end of a session ends the messages that it began, as interrupted", broken_off)

    def watched():
        ida, joe = lab.person(), lab.person()
        with lab.bound(ida) as one:
            sent(one, to=joe, client_msg_id="w", body={"text": "there?"})
            answer = one.ask("watch_presence", users=[joe])
            equal([(c["user"], c["online"]) for c in answer["changes"]], [(joe, False)])
            with lab.bound(joe):
                one.chat_until(lambda m: m.get("t") == "presence" and (joe, True) in [(c["user"], c["online"]) for c in m["changes"]])
            equal(one.ask("unwatch_presence")["t"], "ok")
            refusal = one.ask("watch_presence", users=[ada])
            equal((refusal["t"], refusal["code"]), ("error", "forbidden"))
    tap.case("presence is watched over MIOP", watched)

    def cursor_of_another_store():
        with lab.bound(ada, cursor="0123456789ab.0.5.0") as session:
            equal(json.loads(session.terms.resume), {"complete": False, "reset": True})
            equal(session.ask("ping")["t"], "pong")
    tap.case("a cursor of another store is told so: the client reads anew", cursor_of_another_store)
