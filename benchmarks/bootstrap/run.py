"""How many anchors grow from a few seeds, how many of them are right, and what are they good for? A module for each section.

    python benchmarks/bootstrap.py                        # everything; writes results/bootstrap.json and .png
    python benchmarks/bootstrap.py --resume               # the same, without what was measured already by this code
    python benchmarks/bootstrap.py --only counts scale    # some sections, of what this code grew before; the others' results stay
    python benchmarks/bootstrap.py --quick                # one draw, few seeds and pairs, to try it out; writes elsewhere
    python benchmarks/bootstrap.py --plan                 # how many cells there are, and how long the known ones took
    python benchmarks/bootstrap.py --page                 # only the tables of docs/results/bootstrap.md and README.md

Items embedded by two encoders, one side in another order; some true pairs are given as seeds. Means and standard deviations over
draws of items, order and seeds: fewer draws of the methods that take minutes. Seconds are of one core.
Data: see benchmarks/quality/data.py; for `scale`, corpora of film reviews.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ablation
import asked
import cells
import counts
import data
import kill
import page
import published
import retrieval
import scale
import stitched
import store
import strangers
import summaries
import swapped
import tables
from cells import Cell, Found
from rich.console import Console
from rich.table import Table
from store import Key

from app.demo.run import new_table

RESULTS = Path(__file__).parents[1] / "results" / "bootstrap.json"
ABOUT = (__doc__ or "").split("\n\n")[2].replace("\n", " ")

#: how a section summarises its cells, and shows that
Telling = tuple[Callable[[Found], dict[str, Any]], Callable[[dict[str, Any]], Iterator[Table]]]

SECTIONS: dict[str, tuple[Any, Telling]] = {
    module.NAME: (module, telling)
    for module, telling in (
        (retrieval, (summaries.of_rows, tables.of_rows)),
        (stitched, (summaries.of_rows, tables.of_rows)),
        (counts, (summaries.of_counts, tables.of_counts)),
        (scale, (summaries.of_scale, tables.of_scale)),
        (strangers, (summaries.of_strangers, tables.of_strangers)),
        (swapped, (summaries.of_swapped, tables.of_swapped)),
        (asked, (summaries.of_asked, tables.of_asked)),
        (ablation, (summaries.of_counts, tables.of_counts)),
        (kill, (summaries.of_kill, tables.of_kill)),
    )
}


def main() -> None:
    """Measure, show and write the chosen sections."""
    arguments = _arguments()
    console = Console(width=max(200, Console().width))
    path = Path("bootstrap-quick.json") if arguments.quick else RESULTS
    if arguments.plan:
        _plan(console, arguments)
        return
    if arguments.page:
        _pages(console)
        return
    if not arguments.resume:
        store.forget(arguments.only, every=set(arguments.only) == set(SECTIONS))
    for name in arguments.only:
        module, (summarise, show) = SECTIONS[name]
        try:
            asked = list(module.cells(quick=arguments.quick, draws=arguments.draws))
            found = cells.run(asked, console, jobs=arguments.jobs)
        except data.Missing as error:
            console.print(f"[red]{name} is left out.[/red] {error}", highlight=False)
            continue
        if found:
            section = summarise(found)
            for table in show(section):
                console.print(table)
            spent = summaries.seconds(found)
            console.print(tables.of_seconds(name, spent))
            write(path, name, {"note": module.__doc__, **section, "seconds": spent, "version": store.version()})
    if not arguments.quick and RESULTS.exists():
        import picture

        picture.draw(_report(), RESULTS.with_suffix(".png"))
        _pages(console)
    console.print(f"Written to {path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), help="these sections")
    parser.add_argument("--draws", type=int, help="at most; default: ten of counts, five else, fewer of slow methods")
    parser.add_argument("--quick", action="store_true", help="one draw, few seeds and pairs")
    parser.add_argument("--resume", action="store_true", help="keep what was measured already by this code")
    parser.add_argument("--plan", action="store_true", help="only say what would be measured")
    parser.add_argument("--page", action="store_true", help="only write the pages' tables, of the results that are there")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, each on one core")
    return parser.parse_args()


def _pages(console: Console) -> None:
    page.write(_report())
    console.print(f"Tables of {', '.join(str(path) for path in page.PAGES)} are those of {RESULTS}.")


def _report() -> Any:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def _plan(console: Console, arguments: argparse.Namespace) -> None:
    """Cells by section and method, how many are known, and what the others will take: as long as the known ones of their kind."""
    shown = new_table(f"version {store.version()}", ("section", "method"), ("cells", "known", "s each", "s to come"))
    spent, whole = store.seconds(), 0.0
    for name in arguments.only:
        asked = list(SECTIONS[name][0].cells(quick=arguments.quick, draws=arguments.draws))
        for group in dict.fromkeys(cell.group for cell in asked):
            many = [cell for cell in asked if cell.group == group]
            missing = [cell for cell in many if store.cell(cell.key) is None]
            guesses = [guess for cell in missing if (guess := _guess(cell, spent)) is not None]
            each = sum(guesses) / len(guesses) if guesses else 0.0
            whole += each * len(missing)
            told = (
                str(len(many)),
                str(len(many) - len(missing)),
                f"{each:.1f}" if guesses else "?",
                f"{each * len(missing):,.0f}",
            )
            shown.add_row(name, group, *told)
    console.print(shown)
    console.print(f"About {whole / 60:.0f} minutes of one core to come, by what any version took.")


def _guess(cell: Cell, spent: Mapping[Key, float]) -> float | None:
    """The mean seconds of what is most like it: the same but for the draw, or of the same method and items; None if none is."""
    for like in (_place, _seeds, _kind):
        told = [seconds for key, seconds in spent.items() if like(key) == like(cell.key)]
        if told:
            return sum(told) / len(told)
    return None


def _place(key: Key) -> Key:
    """Section, items, method and number of seeds."""
    return key[:-1]


def _seeds(key: Key) -> Key:
    """The same of any section, and any encoders of the items' kind."""
    return (str(key[1]).split(",")[0], *key[2:-1])


def _kind(key: Key) -> Key:
    """The items' kind and the method."""
    return (str(key[1]).split(",")[0], *key[2:3])


def write(path: Path, name: str, section: Mapping[str, Any]) -> None:
    """Put a section into the JSON, beside the others that are there."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    sections = before.get("sections", {}) | {name: section}
    ordered = {known: sections[known] for known in (*SECTIONS, *sections) if known in sections}
    paper = {"source": published.SOURCE, "tables": published.TABLES}
    report = {"about": ABOUT, "paper": paper, "sections": ordered}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rounded(report), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Floats to four digits after the point."""
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value
