"""A session over server-sent events, as docs/sse.md describes it, on httpx and httpx-sse."""

import json
from contextlib import ExitStack

from httpx_sse import connect_sse


class Ended(Exception):
    """The stream is over: the code and reason of its event `close`, or (None, None) when it was cut."""

    def __init__(self, code=None, reason=None):
        super().__init__(f"ended with {code} {reason}")
        self.code, self.reason = code, reason


class EventStream:
    """`client` is an `httpx.Client` with the server's (or a proxy's) address as its base."""

    def __init__(self, client, token, device, extensions=None, last_event_id=None, **bind):
        self.client, self.extensions = client, extensions or {}
        self.number, self.refs, self.cursor, self.entries = 0, 0, None, []
        self.stack = ExitStack()
        headers = {"Authorization": f"Bearer {token}", **({"Last-Event-ID": last_event_id} if last_event_id else {})}
        source = self.stack.enter_context(connect_sse(client, "GET", "/v1/stream", params={"device_id": device, **bind}, headers=headers, extensions=self.extensions))
        self.response = source.response
        assert self.response.status_code == 200, (self.response.status_code, self.response.read())
        self.events = source.iter_sse()
        self.opened = None

    def begin(self):
        """Reads `open` and `bound`."""
        first = next(self.events)
        assert first.event == "open", first
        self.opened = first.json()
        self.bound = self.next("bound")
        return self

    def event(self):
        for event in self.events:
            if event.event == "probe":
                self.post({"t": "ping"})
            elif event.event == "close":
                raise Ended(event.json()["code"], event.json()["reason"])
            else:
                return event
        raise Ended()

    def next(self, kind):
        """The next frame of this kind."""
        while True:
            event = self.event()
            frame = event.json()
            if "cursor" in frame:
                self.cursor = frame["cursor"]
            if frame["t"] == "messages":
                assert event.id == frame["cursor"], event
                self.entries += frame["entries"]
            if frame["t"] == kind:
                return frame
            assert frame["t"] != "error", frame

    def ends(self):
        """The code and reason that the stream ends with."""
        try:
            while True:
                self.event()
        except Ended as ended:
            return ended.code, ended.reason

    def post(self, *frames, number=None, secret=None):
        """Sends frames as the next request, or as this one again."""
        if number is None:
            self.number += 1
        return self.client.post(
            f"/v1/stream/{self.opened['stream']}",
            params={"number": number or self.number},
            content="\n".join(json.dumps(frame, ensure_ascii=False) for frame in frames).encode(),
            headers={"Authorization": f"Bearer {secret or self.opened['secret']}", "Content-Type": "application/x-ndjson"},
            extensions=self.extensions,
        )

    def send(self, to, body, **more):
        """The receipt of a message."""
        self.refs += 1
        answer = self.post({"t": "send", "ref": self.refs, "to": to, "body": body, **more})
        assert answer.status_code == 202, answer.text
        while True:
            for result in self.next("sent")["results"]:
                if result["ref"] == self.refs:
                    return result

    def have(self, count):
        while len(self.entries) < count:
            self.next("messages")
        return [entry["body"] for entry in self.entries]

    def cut(self):
        self.stack.close()

    def unbind(self):
        assert self.post({"t": "unbind"}).status_code == 202
        return self.ends()
