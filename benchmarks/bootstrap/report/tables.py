"""Tables for a terminal, one kind for each section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from app.demo.run import new_table
from benchmarks.bootstrap.report.summaries import Section


def of_counts(section: Section) -> Iterator[Table]:
    """The share that is right (and how many pairs), and how many runs were good, by method and
    number of seeds.
    """
    asked = dict.fromkeys(
        count for rows in section["cases"].values() for row in rows.values() for count in row
    )
    order = sorted(asked, key=int)
    shown = new_table(
        "share of accepted pairs that are right (pairs accepted; runs mostly right, of draws)",
        ("pair of encoders", "method"),
        tuple(f"{count} seeds" for count in order),
    )
    for case, rows in section["cases"].items():
        for place, (method, row) in enumerate(rows.items()):
            cells = (_count(row[count]) if count in row else "" for count in order)
            shown.add_row("" if place else case, method, *cells, end_section=place == len(rows) - 1)
    yield shown
    if section["levels"]:
        shown = new_table(
            "confidence in single pairs", ("method", "from"), ("pairs", "right", "mean confidence")
        )
        for method, levels in section["levels"].items():
            for level, told in levels.items():
                shown.add_row(
                    method,
                    level,
                    f"{told['pairs']:,}",
                    f"{told['right']:.3f}",
                    f"{told['expected']:.3f}",
                )
        yield shown
    yield from _honesty(section)
    if section["more"]:
        shown = new_table(
            "as many seeds again, five at least",
            ("seeds that were refused",),
            ("runs", "good with them"),
        )
        for count, told in section["more"].items():
            shown.add_row(count, str(told["refused"]), str(told["good_with_more"]))
        yield shown


def of_strangers(section: Section) -> Iterator[Table]:
    """Pools that have some items in common, or none."""
    columns = ("draws", "pairs", "right", "estimated", "mostly right", "called good")
    shown = new_table("some items in common, or none", ("pools",), columns)
    for kind, told in section["kinds"].items():
        figures = (f"{told['pairs']:,.0f}", f"{told['share']:.3f}", f"{told['said_share']:.3f}")
        shown.add_row(kind, str(told["draws"]), *figures, str(told["good"]), str(told["said_good"]))
    yield shown
    yield from _honesty(section)


def of_swapped(section: Section) -> Iterator[Table]:
    """Which wrong seeds were reported."""
    columns = (
        "draws",
        "wrong seeds",
        "named",
        "right ones accused",
        "pairs",
        "right",
        "estimated",
        "mostly right",
    )
    shown = new_table("one seed in five is wrong", ("pools",), columns)
    for place, told in section["places"].items():
        counted = (str(told[name]) for name in ("draws", "wrong", "named", "accused"))
        figures = (f"{told['pairs']:,.0f}", f"{told['share']:.3f}", f"{told['said_share']:.3f}")
        shown.add_row(place, *counted, *figures, str(told["good"]))
    yield shown


def of_more_seeds(section: Section) -> Iterator[Table]:
    """What suggested seeds are worth."""
    shown = new_table(
        "ten seeds more: runs that are mostly right",
        ("pools",),
        ("refused runs", "asked for", "at random"),
    )
    for place, told in section["places"].items():
        shown.add_row(
            place,
            str(told["refused"]),
            *(str(told[way]["good"]) for way in ("asked for", "at random")),
        )
    yield shown


def _honesty(section: Section) -> Iterator[Table]:
    if section["honesty"]:
        columns = (
            "runs",
            "good",
            "called good",
            "called what it is",
            "bad called good",
            "good called bad",
            "error of the share",
        )
        shown = new_table("is it known which runs failed?", ("method",), columns)
        for method, told in section["honesty"].items():
            numbers = (
                told["runs"],
                told["good"],
                told["said_good"],
                f"{told['right']:.3f}",
                told["bad_called_good"],
            )
            shown.add_row(
                method,
                *map(str, numbers),
                str(told["good_called_bad"]),
                f"{told['share_error']:.3f}",
            )
        yield shown


def of_scale(section: Section) -> Iterator[Table]:
    """Seconds of one core and memory. For runs that did not end, an estimate of the time that all
    steps would take.
    """
    columns = ("items", "s a step", "steps", "s in all", "MiB above the data", "pairs", "right")
    shown = new_table("at scale, one core", ("method",), columns)
    for name, run in section["runs"].items():
        method, _, size = name.rpartition(", ")
        each = run["step_seconds"]
        whole = (
            f"{run['run_seconds']:.0f}" if run["finished"] else f"(about {each * run['of']:,.0f})"
        )
        share = f"{run['right'] / max(1, run['pairs']):.3f}" if run["finished"] else ""
        shown.add_row(
            method,
            f"{int(size):,}",
            "" if each is None else f"{each:.2f}",
            f"{run['steps']} of {run['of']}",
            whole,
            f"{run['above_bytes'] / 2**20:,.0f}",
            f"{run['pairs']:,}" if run["finished"] else "",
            share,
        )
    yield shown


def of_kill(section: Section) -> Iterator[Table]:
    """Both runs, and whether they are the same."""
    columns = (
        "pairs",
        "right",
        "killed after steps",
        "the same bits",
        "the same result",
        "s undisturbed",
        "s killed",
    )
    shown = new_table("kill -9", ("run",), columns)
    for name, run in section["runs"].items():
        steps, times = (
            ", ".join(map(str, run["at_steps"])),
            (f"{run[of]:.0f}" for of in ("undisturbed_s", "killed_s")),
        )
        same = ("yes" if run[of] else "NO" for of in ("same_bits", "same_result"))
        shown.add_row(name, f"{run['pairs']:,}", f"{run['right']:.3f}", steps, *same, *times)
    yield shown


def of_seconds(name: str, seconds: Mapping[str, Mapping[str, float]]) -> Table:
    """The seconds that a section took."""
    shown = new_table(f"{name}: seconds of one core", ("method",), ("cells", "each", "all"))
    for method, told in seconds.items():
        shown.add_row(method, f"{told['cells']:,}", f"{told['each']:.1f}", f"{told['all']:,.0f}")
    return shown


def _count(row: Mapping[str, Any]) -> str:
    return f"{row['share']['mean']:.2f} ({row['pairs']:,.0f}; {row['good']}/{row['draws']})"
