"""Write the generated parts of the pages: `python scripts/pages.py`, or `make pages`.

A part stands between "<!-- settings -->" and "<!-- /settings -->".
"<!-- native/gap only n: 0; 50 without worst pair -->" takes some rows and columns of a table.
Tests compare the pages with what this module writes.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: "<!-- settings -->", or a table of results: "<!-- relevance/cranfield -->"
BLOCK = re.compile(
    r"<!-- (?P<name>[a-z_]+[\w/-]*)(?: only (?P<column>[^:\n]+): (?P<values>[^\n]+?))?"
    r"(?: without (?P<without>[^\n]+))? -->\n.*?<!-- /(?P=name) -->",
    re.DOTALL,
)
RESULTS = (ROOT / "benchmarks" / "results", ROOT / "research" / "results")


MIB = 2**20


def main() -> None:
    """Fill the generated parts of all pages anew."""
    for path in PAGES:
        page = ROOT / path
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


def filled(text: str) -> str:
    """A page with its generated parts as they should be. Parts of other names stay as they are."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name in BLOCKS:
            content = BLOCKS[name]()
        elif "/" in name:
            rows = results(*name.split("/"))
            if match["column"]:
                place = rows[0].index(match["column"])
                rows = rows[:1] + [row for row in rows if row[place] in match["values"].split("; ")]
            dropped = match["without"].split("; ") if match["without"] else []
            kept = [place for place, column in enumerate(rows[0]) if column not in dropped]
            content = table([[row[place] for place in kept] for row in rows])
        else:
            return match[0]
        return f"{match[0].splitlines()[0]}\n{content.strip()}\n<!-- /{name} -->"

    return BLOCK.sub(block, text)


def results(file: str, name: str) -> list[list[str]]:
    """A table that a benchmark or a reproduction wrote. Raises KeyError without it."""
    for folder in RESULTS:
        path = folder / f"{file}.json"
        if path.exists():
            return list(json.loads(path.read_text(encoding="utf-8"))["tables"][name])
    raise KeyError(f"no results of {file}")


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first row has the columns."""
    columns, *others = rows
    lines = (columns, ["---"] * len(columns), *others)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def settings() -> str:
    """A table of all settings, from their class."""
    from app.settings import Settings

    rows = (
        f"| `ANCHORAGE_{name.upper()}` | {_default(name, field.default)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    )
    return "| variable | default | meaning |\n| --- | --- | --- |\n" + "\n".join(rows)


def _default(name: str, value: object) -> str:
    if value is None or value == "":
        return ""
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value} ({value // MIB:,} MiB)"
    return str(value)


def commands() -> str:
    """A table of all commands, each with its arguments and the first line of its help."""
    import typer

    from app.cli.commands import cli

    rows = [["command", "what it does"]]
    for name, command in _all("anchorage", typer.main.get_command(cli)):
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        usage = " ".join([name, *(each.metavar or str(each.name).upper() for each in arguments)])
        rows.append([f"`{usage}`", inspect.cleandoc(command.help or "").partition("\n\n")[0]])
    return table(rows)


def _all(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands of a group, and of the groups inside it, by their whole names.

    A hidden command is what the group does without a command.
    """
    for each in getattr(command, "commands", {}).values():
        inner = name if each.hidden else f"{name} {each.name}"
        if hasattr(each, "commands"):
            yield from _all(inner, each)
        else:
            yield inner, each


BLOCKS: dict[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
}
PAGES = (
    "README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for path in ROOT.glob("docs/**/*.md")
        if BLOCK.search(path.read_text(encoding="utf-8"))
    ),
)


if __name__ == "__main__":
    main()
