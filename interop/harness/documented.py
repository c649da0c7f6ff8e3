"""Holds the page of the server helpers against the files that run."""

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
HELPERS = DOCS / "examples" / "server"


def is_printed(file):
    """`docs/server-helpers.md` has the file of `docs/examples/server` to the letter, as a block of its own."""
    text = (HELPERS / file).read_text()
    page = (DOCS / "server-helpers.md").read_text()
    blocks = [block.partition("\n")[2] for block in page.split("\n```")]
    assert text in [f"{block}\n" for block in blocks], f"docs/server-helpers.md does not have {file} as it is"
