"""The page of all error codes: docs/reference/errors.md as HTML, with an anchor for each code."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from pathlib import Path

#: in an installed package, and in a checkout
SOURCES = (
    Path(__file__).with_name("errors.md"),
    Path(__file__).parents[2] / "docs" / "reference" / "errors.md",
)

HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Errors</title>
<meta name="viewport" content="width=device-width">
<style>body{max-width:46em;margin:2em auto;padding:0 1em;font:1em/1.5 system-ui,sans-serif}
:target{background:#ff9}td,th{text-align:left;vertical-align:top;padding-right:1em}</style></head>
"""


@cache
def html() -> str:
    """Returns the page."""
    source = next((path for path in SOURCES if path.exists()), SOURCES[0])
    blocks = source.read_text().strip().split("\n\n")
    return f"{HEAD}<body>{''.join(map(_block, blocks))}</body></html>"


def _block(text: str) -> str:
    """Returns one block of the Markdown that the source uses: a heading, a table or a paragraph."""
    heading = re.fullmatch(r"(#{1,3}) (.+)", text)
    if heading:
        level, title = len(heading[1]), heading[2]
        return f'<h{level} id="{_anchor(title)}">{_inline(title)}</h{level}>\n'
    if text.startswith("|"):
        return f"<table>{''.join(map(_row, text.splitlines()))}</table>\n"
    return f"<p>{_inline(text)}</p>\n"


def _row(line: str) -> str:
    if re.fullmatch(r"[|\s:-]+", line):
        return ""
    cells = "".join(f"<td>{_inline(cell.strip())}</td>" for cell in line.strip("|").split("|"))
    return f"<tr>{cells}</tr>"


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", title.lower()).strip("-")


def _inline(text: str) -> str:
    """Returns code and emphasis as HTML, and only the text of links: their pages are elsewhere."""
    text = escape(text, quote=False)
    text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*+([^*]+)\*+", r"<strong>\1</strong>", text)
