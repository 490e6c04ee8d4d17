"""How commands print: columns for people, JSON with --json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import orjson
import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def print_json(value: Any) -> None:
    """Print a value as JSON: dates in ISO 8601, and what JSON lacks as text."""
    typer.echo(orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2).decode())


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, as_json: bool) -> None:
    """Print rows: as objects with --json, otherwise in columns, one line a row for grep."""
    if as_json:
        names = [column.replace(" ", "_") for column in columns]
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    lines = [list(columns), *([as_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def print_fields(columns: Sequence[str], found: Iterable[Any], *, as_json: bool) -> None:
    """Print some fields of objects, a row for each."""
    rows = [[each[column] for column in columns] for each in found]
    print_rows(columns, rows, as_json=as_json)


def as_text(cell: Any) -> str:
    """Return a cell as a person reads it."""
    if cell is None:
        return ""
    if isinstance(cell, dict):
        cell = [f"{name}={each}" for name, each in cell.items()]
    if isinstance(cell, list | tuple):
        return ", ".join(map(str, cell))
    return f"{cell:%Y-%m-%d %H:%M}" if hasattr(cell, "strftime") else str(cell)


def answer(made: Any, sentence: str, *, as_json: bool) -> None:
    """Print what was done: a sentence, or JSON."""
    print_json(made) if as_json else typer.echo(sentence)


def warn(sentence: str) -> None:
    """Print a warning on standard error."""
    typer.secho(sentence, fg="yellow", err=True)
