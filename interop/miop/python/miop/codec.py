"""Frames of MIOP/1 as sections 2 and 4 and appendix A of docs/miop.md describe them. No I/O."""

from dataclasses import dataclass, field

HEARTBEAT, BIND, BOUND, PUSH, ACK, CHAT, UNBIND, REDIRECT, ERROR = range(1, 10)
NAMES = {
    HEARTBEAT: "heartbeat", BIND: "bind", BOUND: "bound", PUSH: "push", ACK: "ack",
    CHAT: "chat", UNBIND: "unbind", REDIRECT: "redirect", ERROR: "error",
}
KINDS = {name: kind for kind, name in NAMES.items()}

FIRST_FRAME_MAX = 16_384
CLIENT_FRAME_MAX = 196_608
SERVER_FRAME_MAX = 16_777_216


class Refused(Exception):
    """What breaks the rules: `code` is `malformed` or `limit_exceeded` (2.7)."""

    def __init__(self, code, why):
        super().__init__(f"{code}: {why}")
        self.code = code


class Incomplete(Exception):
    """More bytes are needed."""


@dataclass(frozen=True)
class Field:
    tag: int
    name: str
    type: str  # number, numbers, text, bytes or flag (2.4)
    required: bool = False
    limit: int | None = None
    least: int = 0
    default: object = None


R = True
FIELDS = {
    HEARTBEAT: [Field(1, "interval_s", "number")],
    BIND: [
        Field(1, "version", "number", R, least=1),
        Field(2, "token", "text", R),
        Field(3, "device_id", "text", R, 64),
        Field(4, "device_kind", "text", limit=32),
        Field(5, "app_version", "text", limit=32),
        Field(6, "cursor", "text", limit=512),
        Field(7, "wants", "number"),
        Field(8, "heartbeat_s", "number"),
    ],
    BOUND: [
        Field(1, "version", "number", R, least=1),
        Field(2, "session", "text", R, 64),
        Field(3, "user", "text", R, 64),
        Field(4, "heartbeat_s", "number", R),
        Field(5, "frame_bytes_max", "number", R),
        Field(6, "cursor", "text", limit=512),
        Field(7, "resume", "bytes"),
        Field(8, "pushes", "flag"),
    ],
    PUSH: [
        Field(1, "push", "number", R),
        Field(2, "expires_at", "number", R),
        Field(3, "collapse_key", "text", limit=64),
        Field(4, "priority", "number", default=0),
        Field(5, "type", "text", R, 32),
        Field(6, "body", "bytes", R, 4096),
    ],
    ACK: [Field(1, "pushes", "numbers", R, 1000)],
    UNBIND: [Field(1, "reason", "text", limit=512)],
    REDIRECT: [Field(1, "address", "text", limit=512), Field(2, "after_ms", "number", R)],
    ERROR: [
        Field(1, "code", "text", R, 64),
        Field(2, "message", "text", R),
        Field(3, "retry", "flag", default=False),
        Field(4, "retry_after_ms", "number"),
        Field(5, "fatal", "flag", default=False),
    ],
}


@dataclass
class Frame:
    """One frame: `payload` stands for the kinds that are not made of fields (chat, and kinds that are skipped)."""

    kind: int
    fields: dict = field(default_factory=dict)
    payload: bytes = b""

    @property
    def name(self):
        return NAMES.get(self.kind, "skip")

    def __getattr__(self, name):
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(f"a {self.name} frame without {name}: {self.fields}") from None

    def get(self, name, default=None):
        return self.fields.get(name, default)


# Numbers (2.1)

def number(value):
    """The shortest form of `value`."""
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{value} does not fit in 64 bits")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_number(data, at):
    """The number that begins at `at`, and where it ends."""
    value = 0
    for i in range(10):
        if at + i >= len(data):
            raise Incomplete
        byte = data[at + i]
        if i == 9 and byte > 1:
            raise Refused("malformed", "more than 64 bits")
        if i > 0 and byte == 0:
            raise Refused("malformed", "not the shortest form")
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise AssertionError("the tenth byte ends a number or is refused")


def whole_number(data, at, what):
    """A number inside a payload, where nothing more can come."""
    try:
        return read_number(data, at)
    except Incomplete:
        raise Refused("malformed", f"{what} is cut short") from None


# Frames (2.2, 2.3; appendix A)

def read_head(data, at, limit):
    """Kind, length of the payload and where it begins."""
    if at >= len(data):
        raise Incomplete
    kind = data[at]
    if kind < 0x80 and kind not in NAMES:
        raise Refused("malformed", f"kind {kind:#04x} is unknown")
    length = 0
    for i in range(4):
        if at + 1 + i >= len(data):
            raise Incomplete
        byte = data[at + 1 + i]
        length |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if byte == 0 and i > 0:
                raise Refused("malformed", "the length is not in its shortest form")
            if length > limit:
                raise Refused("limit_exceeded", f"{length} bytes where {limit} are taken")
            return kind, length, at + 2 + i
    raise Refused("limit_exceeded", "a fifth byte of length")


def read_frame(data, at=0, limit=SERVER_FRAME_MAX):
    """The frame that begins at `at`, and where it ends. Raises `Incomplete` or `Refused`."""
    kind, length, start = read_head(data, at, limit)
    if len(data) - start < length:
        raise Incomplete
    payload = bytes(data[start:start + length])
    if kind >= 0x80 or kind == CHAT:
        return Frame(kind, {}, payload), start + length
    return Frame(kind, read_fields(kind, payload)), start + length


def read_fields(kind, payload):
    known = {f.tag: f for f in FIELDS[kind]}
    seen, at = {}, 0
    while at < len(payload):
        tag = payload[at]
        size, at = whole_number(payload, at + 1, "the length of a field")
        if size > len(payload) - at:
            raise Refused("malformed", f"field {tag:#04x} is longer than its payload")
        value, at = payload[at:at + size], at + size
        spec = known.get(tag)
        if spec is None:
            if tag >= 0x80:
                raise Refused("malformed", f"field {tag:#04x} is critical and unknown")
            continue
        if spec.name in seen:
            raise Refused("malformed", f"{spec.name} comes twice")
        seen[spec.name] = read_value(spec, value)
    for spec in known.values():
        if spec.required and spec.name not in seen:
            raise Refused("malformed", f"{spec.name} is missing")
        if spec.default is not None:
            seen.setdefault(spec.name, spec.default)
    return seen


def read_value(spec, value):
    if spec.type in ("number", "flag"):
        n, end = whole_number(value, 0, spec.name)
        if end != len(value):
            raise Refused("malformed", f"bytes after the number {spec.name}")
        if n < spec.least:
            raise Refused("malformed", f"{spec.name} is {n}")
        return n != 0 if spec.type == "flag" else n
    if spec.type == "numbers":
        out, at = [], 0
        while at < len(value):
            n, at = whole_number(value, at, spec.name)
            out.append(n)
            if len(out) > spec.limit:
                raise Refused("limit_exceeded", f"more than {spec.limit} numbers in {spec.name}")
        return out
    # A limit of bytes binds the writer (2.4).
    if spec.type == "text" and spec.limit is not None and len(value) > spec.limit:
        raise Refused("limit_exceeded", f"{len(value)} bytes in {spec.name}, where {spec.limit} are taken")
    if spec.type == "bytes":
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as e:
        raise Refused("malformed", f"{spec.name} is not UTF-8: {e}") from None


# Writing: ascending tags, defaults left out, but an error's flags always said (2.4, 4.9).

def write_value(spec, value):
    if spec.type == "number":
        return number(value)
    if spec.type == "flag":
        return number(1 if value else 0)
    if spec.type == "numbers":
        return b"".join(number(n) for n in value)
    return value.encode("utf-8") if spec.type == "text" else bytes(value)


def raw_field(tag, value):
    return bytes([tag]) + number(len(value)) + value


def raw_frame(kind, payload=b""):
    """A frame of any kind and payload, right or wrong."""
    return bytes([kind]) + number(len(payload)) + payload


def write_fields(kind, fields):
    out = b""
    unknown = set(fields) - {f.name for f in FIELDS[kind]}
    if unknown:
        raise ValueError(f"a {NAMES[kind]} frame has no {', '.join(sorted(unknown))}")
    for spec in FIELDS[kind]:
        value = fields.get(spec.name)
        if value is None:
            if spec.required:
                raise ValueError(f"a {NAMES[kind]} frame needs {spec.name}")
            if spec.default is not False:
                continue
            value = spec.default
        elif spec.type == "number" and value == spec.default:
            continue
        out += raw_field(spec.tag, write_value(spec, value))
    return out


def write_frame(kind, **fields):
    return raw_frame(kind, write_fields(kind, fields))


def heartbeat(interval_s=None):
    return write_frame(HEARTBEAT, interval_s=interval_s)


def bind(token, device_id, version=1, **rest):
    return write_frame(BIND, version=version, token=token, device_id=device_id, **rest)


def ack(pushes):
    return write_frame(ACK, pushes=list(pushes))


def chat(payload):
    return raw_frame(CHAT, payload)


def unbind(reason=None):
    return write_frame(UNBIND, reason=reason)
