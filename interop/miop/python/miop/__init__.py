"""A client of MIOP/1, written from docs/miop.md alone.

`codec` reads and writes frames and does no I/O; `session` is one connection, frame by frame, which also lets a test
say what the text forbids; `device` is what an app would hold: it binds, keeps the cursor, tells pushes that it has
seen, and connects again as section 7 says.
"""
