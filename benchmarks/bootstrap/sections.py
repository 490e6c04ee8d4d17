"""The command line of the bootstrap benchmarks: measure sections cell by cell, show them, and write
them to a report.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app.demo.run import new_table
from benchmarks import common
from benchmarks.bootstrap import cells, store
from benchmarks.bootstrap.cells import Cell, Found
from benchmarks.bootstrap.report import page, summaries, tables
from benchmarks.bootstrap.store import Key


@dataclass(frozen=True)
class Section:
    """module     has `cells(quick=, draws=)`, which yields what to measure; its docstring is a note
    summarise  makes the section of the report from the measured cells
    show       makes the tables for a terminal from the section
    """

    module: Any
    summarise: Callable[[Found], dict[str, Any]]
    show: Callable[[dict[str, Any]], Iterator[Table]]


def last_paragraph(doc: str | None) -> str:
    """The last paragraph of a docstring, in one line."""
    return (doc or "").strip().split("\n\n")[-1].replace("\n", " ")


def command(
    doc: str | None, sections: Mapping[str, Section], results: Path, head: Mapping[str, Any]
) -> Path | None:
    """Run the command line over these sections. Returns the path of the whole report, or None if
    there is nothing to draw.

    `head` is the rest of the report.
    """
    arguments = _arguments(doc, sections, results)
    console = Console(width=max(200, Console().width))
    if arguments.plan:
        _plan(console, arguments, sections)
        return None
    if arguments.page:
        _write_pages(console)
        return None
    path = Path(results.name.replace(".json", "-quick.json")) if arguments.quick else arguments.json
    if not arguments.resume:
        store.forget(arguments.only, every=set(arguments.only) == set(sections))
    for name in arguments.only:
        section = _measure(name, sections[name], console, arguments)
        if section is not None:
            merged = common.merged(
                common.read(path).get("sections", {}), name, section, list(sections)
            )
            common.write(path, common.rounded({**head, "sections": merged}, 4))
    console.print(f"Written to {path}")
    if arguments.quick or not path.exists():
        return None
    if path == results:
        _write_pages(console)
    return path


def _measure(
    name: str, section: Section, console: Console, arguments: argparse.Namespace
) -> dict[str, Any] | None:
    """One section for the report, shown on the console; None if its data is missing."""
    try:
        wanted = list(section.module.cells(quick=arguments.quick, draws=arguments.draws))
        found = cells.run(wanted, console, jobs=arguments.jobs)
    except common.Missing as error:
        console.print(f"[red]{name} is left out.[/red] {error}", highlight=False)
        return None
    if not found:
        return None
    summary = section.summarise(found)
    for table in section.show(summary):
        console.print(table)
    spent = summaries.seconds(found)
    console.print(tables.of_seconds(name, spent))
    return {"note": section.module.__doc__, **summary, "seconds": spent, "version": store.version()}


def _arguments(
    doc: str | None, sections: Mapping[str, Section], results: Path
) -> argparse.Namespace:
    parser = common.parser(doc, results)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(sections),
        default=list(sections),
        help="measure only these sections",
    )
    parser.add_argument(
        "--draws", type=int, help="draws of each cell at most; slow methods have fewer anyway"
    )
    parser.add_argument("--quick", action="store_true", help="one draw, few seeds and pairs")
    parser.add_argument(
        "--resume", action="store_true", help="keep what this version of the code measured before"
    )
    parser.add_argument("--plan", action="store_true", help="only print what would be measured")
    parser.add_argument(
        "--page",
        action="store_true",
        help="only write the tables of the documentation, from the results",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, each on one core")
    return parser.parse_args()


def _write_pages(console: Console) -> None:
    page.write(page.results())
    console.print(f"The tables of {', '.join(str(path) for path in page.PAGES)} are up to date.")


def _plan(console: Console, arguments: argparse.Namespace, sections: Mapping[str, Section]) -> None:
    """Cells by section and method: how many there are, how many are known, and an estimate of the
    seconds to come.
    """
    shown = new_table(
        f"version {store.version()}",
        ("section", "method"),
        ("cells", "known", "s each", "s to come"),
    )
    spent, whole = store.seconds(), 0.0
    for name in arguments.only:
        wanted = list(sections[name].module.cells(quick=arguments.quick, draws=arguments.draws))
        for group in dict.fromkeys(cell.group for cell in wanted):
            members = [cell for cell in wanted if cell.group == group]
            missing = [cell for cell in members if store.cell(cell.key) is None]
            guesses = [guess for cell in missing if (guess := _guess(cell, spent)) is not None]
            each = sum(guesses) / len(guesses) if guesses else 0.0
            whole += each * len(missing)
            figures = (
                str(len(members)),
                str(len(members) - len(missing)),
                f"{each:.1f}" if guesses else "?",
                f"{each * len(missing):,.0f}",
            )
            shown.add_row(name, group, *figures)
    console.print(shown)
    console.print(
        f"About {whole / 60:.0f} minutes of one core to come, by what earlier versions took."
    )


def _guess(cell: Cell, spent: Mapping[Key, float]) -> float | None:
    """Mean seconds of the most similar cells measured so far; None if there are none.

    Similar cells differ in the draw only, or else in section and encoders, or else share only the
    kind of items and the method.
    """
    for kind in (_without_draw, _without_encoders, _items_and_method):
        known = [seconds for key, seconds in spent.items() if kind(key) == kind(cell.key)]
        if known:
            return sum(known) / len(known)
    return None


def _without_draw(key: Key) -> Key:
    return key[:-1]


def _without_encoders(key: Key) -> Key:
    return (str(key[1]).split(",")[0], *key[2:-1])


def _items_and_method(key: Key) -> Key:
    return (str(key[1]).split(",")[0], *key[2:3])
