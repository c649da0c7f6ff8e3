"""The codec against every vector of fixtures/miop, as fixtures/miop/README.md says to use them, and against appendix B."""

import json
import pathlib
import re

from miop import codec

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = ROOT / "fixtures" / "miop"


def all_vectors():
    for path in sorted(FOLDER.glob("*.json")):
        for vector in json.loads(path.read_text())["vectors"]:
            yield path.name, vector


def limit_of(vector):
    return vector.get("payload_max", codec.CLIENT_FRAME_MAX)


def plain(value):
    """A number as vectors write it: a string when a JSON reader could not hold it."""
    return str(value) if not isinstance(value, bool) and isinstance(value, int) and value > 2**53 - 1 else value


def meaning(frame):
    """What a frame means, in the words of the vectors."""
    if frame.name == "skip":
        return {"kind": frame.kind}
    if frame.kind == codec.CHAT:
        return {"json_hex": frame.payload.hex()}
    out = {}
    for name, value in frame.fields.items():
        if isinstance(value, bytes):
            out[name + "_hex"] = value.hex()
        elif isinstance(value, list):
            out[name] = [plain(n) for n in value]
        else:
            out[name] = plain(value)
    return out


def written(vector):
    """The bytes that a writer makes of a vector's meaning."""
    fields = vector["fields"]
    if vector["kind"] == "chat":
        return codec.chat(bytes.fromhex(fields["json_hex"]))
    kind = codec.KINDS[vector["kind"]]
    out = {}
    for spec in codec.FIELDS[kind]:
        if spec.type == "bytes" and spec.name + "_hex" in fields:
            out[spec.name] = bytes.fromhex(fields[spec.name + "_hex"])
        elif spec.name in fields:
            value = fields[spec.name]
            if spec.type == "number":
                value = int(value)
            elif spec.type == "numbers":
                value = [int(n) for n in value]
            out[spec.name] = value
    return codec.write_frame(kind, **out)


def faults(vector):
    """What is wrong with the codec by this vector: a list of sentences."""
    data, limit = bytes.fromhex(vector["hex"]), limit_of(vector)
    try:
        frame, end = codec.read_frame(data, 0, limit)
    except codec.Incomplete:
        return [] if vector.get("incomplete") else ["read as incomplete"]
    except codec.Refused as e:
        return [] if vector.get("error") == e.code else [f"refused with {e}"]
    if "kind" not in vector:
        return [f"read as {frame}"]
    out = []
    if end != len(data):
        out.append(f"{len(data) - end} bytes left over")
    if frame.name != vector["kind"] or meaning(frame) != vector["fields"]:
        out.append(f"read as {frame.name} {meaning(frame)}, not {vector['kind']} {vector['fields']}")
    if vector["kind"] != "skip":
        again = written(vector)
        if vector["canonical"] and again != data:
            out.append(f"written as {again.hex()}")
        if not vector["canonical"] and meaning(codec.read_frame(again)[0]) != vector["fields"]:
            out.append(f"written as {again.hex()}, which means something else")
    for cut in range(len(data)):
        try:
            codec.read_frame(data[:cut], 0, limit)
            out.append(f"its first {cut} bytes are read as a frame")
        except codec.Incomplete:
            pass
        except codec.Refused as e:
            out.append(f"its first {cut} bytes are refused: {e}")
    return out


def one_buffer():
    """All valid vectors one after another: read in order, with nothing left."""
    valid = [v for _, v in all_vectors() if "kind" in v]
    data, at, out = b"".join(bytes.fromhex(v["hex"]) for v in valid), 0, []
    for vector in valid:
        frame, at = codec.read_frame(data, at, codec.SERVER_FRAME_MAX)
        if meaning(frame) != vector["fields"]:
            out.append(f"{vector['name']}: read as {meaning(frame)}")
    if at != len(data):
        out.append(f"{len(data) - at} bytes are left")
    return out


def worked_examples():
    """Appendix B: every block of bytes is the vector of the name that stands above it."""
    text = (ROOT / "docs" / "miop.md").read_text()
    by_name = {v["name"]: v["hex"] for _, v in all_vectors()}
    out, count = [], 0
    for name, block in re.findall(r"```hex ([^\n]*)\n(.*?)```", text, re.S):
        count += 1
        data = ""
        for line in block.splitlines():
            data += re.match(r"((?:[0-9a-f]{2}(?:\s|$))*)", line).group(1).replace(" ", "")
        if by_name.get(name) != data:
            out.append(f"{name}: the text has {data}, the vector {by_name.get(name)}")
    return out if count else ["the text has no example"]
