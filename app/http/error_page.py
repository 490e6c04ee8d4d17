"""The page of all error codes: docs/reference/errors.md as HTML, with an anchor for each code."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

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
    """Returns the page, without its links, whose pages are elsewhere."""
    source = next((path for path in SOURCES if path.exists()), SOURCES[0])
    text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", source.read_text())
    body = MarkdownIt("commonmark").enable("table").render(text)
    return f"{HEAD}<body>{re.sub('<h3>(.*?)</h3>', _with_anchor, body)}</body></html>"


def _with_anchor(heading: re.Match[str]) -> str:
    return f'<h3 id="{heading[1]}">{heading[1]}</h3>'
