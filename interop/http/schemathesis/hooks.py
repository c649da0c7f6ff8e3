"""What the description cannot say for itself.

`int64` and `int32` tell generators how wide a variable must be. Schemathesis takes them for bounds, and a larger number for
one that must be refused; the server takes the whole of an unsigned integer, so the formats are left out here.
"""

import schemathesis


def without_widths(node):
    if isinstance(node, dict):
        kept = {name: without_widths(part) for name, part in node.items()}
        if kept.get("format") in ("int32", "int64"):
            del kept["format"]
        return kept
    return [without_widths(part) for part in node] if isinstance(node, list) else node


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.hook
def before_load_schema(context, raw_schema):
    changed = without_widths(dict(raw_schema))
    raw_schema.clear()
    raw_schema.update(changed)
