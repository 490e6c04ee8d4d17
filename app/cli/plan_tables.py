"""Prints plans and verifications of migrations as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from app.cli.output import warn

#: what the check of a store's vectors says, as a sentence
VERDICTS = {
    "matches": "The store's vectors look like those of {source}: the direction is right.",
    "mixed": "The store holds rows of several encoders.",
    "another": "The store's vectors look like those of {likeliest}, not of {source}.",
}

#: share of rows unlike every encoder with anchors that is worth a warning
MANY_UNLIKE = 0.5


def print_unknown(space: Mapping[str, Any], encoder: str) -> None:
    """Print that it is not known which encoder made a store's vectors, and why."""
    unknown = "It is not known which encoder made its vectors: "
    if all(each["encoder"] != encoder for each in space["encoders"]):
        typer.echo(f"{unknown}no anchors of {encoder} can be compared with them.")
    elif space["unlike"] > MANY_UNLIKE:
        warn(
            f"WARNING: {unknown[0].lower()}{unknown[1:]}{space['unlike']:.0%} of {space['rows']:,} "
            f"sampled rows look like no encoder with anchors, and not like {encoder}. Check that "
            f"{encoder} made them, and that the anchors are items of the same corpus."
        )
    else:
        typer.echo(f"{unknown}there are too few rows, or the anchors are of another corpus.")


def print_plan(document: Mapping[str, Any]) -> None:
    """Print the options, the checks, the estimate and the notes of a plan."""
    console = Console()
    console.print(_options(document))
    for option in document["advice"]:
        console.print(f"[bold]{option['name']}[/bold]: {_plain(option['reason'])}", highlight=False)
    space = document["space"]
    if space["verdict"] == "unknown":
        print_unknown(space, document["source"])
    else:
        sentence = VERDICTS[space["verdict"]]
        facts = {"source": document["source"], "likeliest": space.get("likeliest") or "no encoder"}
        console.print(_plain(sentence.format(**facts)), highlight=False)
    estimate = document["estimate"]
    if estimate is not None:
        console.print(
            f"Estimate: {estimate['recall']:.0%} (between {estimate['low']:.0%} and "
            f"{estimate['high']:.0%}) of the target's own top {estimate['neighbours']} among "
            f"{estimate['index']:,} rows.",
            highlight=False,
        )
    cost = document["cost"]
    missing = ", ".join(cost["seconds_from"]["not_included"])
    console.print(
        f"The run writes {document['rows']:,} rows of {document['dim']} numbers in "
        f"{duration(cost['seconds'])} without {missing}.",
        highlight=False,
    )
    for note in document["notes"]:
        if note["code"] == "space-unknown":
            continue  # printed above
        console.print(f"Note ({note['code']}): {_plain(note['detail'])}", highlight=False)


def print_verification(found: Mapping[str, Any]) -> None:
    """Print each check of a verification with its result."""
    table = Table()
    for name in ("check", "passed", "detail"):
        table.add_column(name)
    for name in ("rows", "payloads", "sample", "index"):
        check = found.get(name)
        if check is not None:
            passed = {True: "yes", False: "NO"}.get(check["passed"], "not possible")
            table.add_row(name, passed, _plain(str(check["detail"])))
    Console().print(table)


def duration(seconds: float | None) -> str:
    """Return seconds as a person says them."""
    if seconds is None:
        return "unknown"
    if seconds < 120:
        return f"{seconds:,.0f} s" if seconds >= 1 or seconds == 0 else "less than 1 s"
    minutes = seconds / 60
    return f"{minutes:,.0f} min" if minutes < 120 else f"{minutes / 60:,.1f} h"


def size(number_of_bytes: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if number_of_bytes < 1000 or unit == "GB":
            return f"{number_of_bytes:,.0f} {unit}"
        number_of_bytes /= 1000
    raise AssertionError


def _options(document: Mapping[str, Any]) -> Table:
    table = Table(
        title=f"{document['store']}: {document['rows']:,} rows from {document['source']} to "
        f"{document['target']}, the best option first"
    )
    for name in ("option", "possible", "nDCG@10", "recall of re-embed", "time", "writes", "disk"):
        table.add_column(name, justify="left" if name in ("option", "possible") else "right")
    for option in document["advice"]:
        table.add_row(
            option["name"],
            "yes" if option["possible"] else "no",
            _number(option["ndcg_10"]),
            _number(option["fidelity"]),
            duration(option["seconds"]),
            f"{option['writes']:,.0f}",
            size(option["disk_bytes"]),
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _plain(text: str) -> str:
    """Return text in which rich finds no markup."""
    return text.replace("[", r"\[")
