"""The tables of the page: situations, peers, and collections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.common import Table
from benchmarks.search.cells import ANCHORS, SAME, SITUATIONS

Cell = Mapping[str, Any]
GROUPS = ("chose", "opened")
#: a judged difference that a comparison must see
CLEAR = 0.02
#: what is not a setting of ours
OTHERS = ("EmbedFlow", "rebasis", "isotrieve", "graded bridge")
CHOSEN = ("default", "first", "default, 50 texts")
#: peers of each situation, and our setting with as many texts
PEERS = {
    "old and texts": {"EmbedFlow": "default, 50 texts", "rebasis": "default"},
    "texts": {"rebasis": "100 texts"},
    "old": {"rebasis": "default", "isotrieve": "default"},
    "neither": {"rebasis": "bridge", "isotrieve": "bridge"},
}


def values_of(cell: Cell, situation: str) -> dict[str, float]:
    """The settings of a situation, by name; keep is one where the old encoder runs."""
    start = f"{situation}: "
    found = {k.removeprefix(start): v for k, v in cell["values"].items() if k.startswith(start)}
    return {**found, "keep": cell["keep"]} if situation.startswith("old") else found


def on_the_same(cell: Cell, peer: str) -> dict[str, float]:
    """The values of the draws that a peer was measured on."""
    same = {k.removeprefix(SAME): v for k, v in cell["values"].items() if k.startswith(SAME)}
    return {**cell["values"], **({} if peer == "EmbedFlow" else same)}


def settings(values: Mapping[str, float]) -> list[str]:
    """The fixed settings among them."""
    return [each for each in values if each not in (*OTHERS, *CHOSEN)]


def groups(
    cells: Sequence[Cell],
) -> Iterable[tuple[str, str, int, list[tuple[Cell, dict[str, float]]]]]:
    """Situation, group of collections, anchors, and the cells with their values."""
    for situation in SITUATIONS:
        for group in GROUPS:
            for anchors in sorted({each["anchors"] for each in cells}):
                found = [
                    (each, values_of(each, situation))
                    for each in cells
                    if each["group"] == group and each["anchors"] == anchors
                ]
                found = [each for each in found if "default" in each[1]]
                if found:
                    yield situation, group, anchors, found


def situations(cells: Sequence[Cell]) -> Table:
    """What the default finds beside the best fixed setting and the best in hindsight."""
    table = [
        ["has", "collections", "anchors", "cells", "keep", "first search", "default", "best fixed",
         "hindsight", "re-embed", "regret", "worst, to keep"]
    ]  # fmt: skip
    for situation, group, anchors, found in groups(cells):
        names = settings(found[0][1])
        fixed = {name: mean(values[name] for _, values in found) for name in names}
        best = max(fixed, key=lambda name: fixed[name])
        hindsight = [max(values[name] for name in names) for _, values in found]
        default = [values["default"] for _, values in found]
        keep = [cell["keep"] for cell, _ in found]
        first = mean(values.get("first", values["default"]) for _, values in found)
        worst = min(a - b for a, b in zip(default, keep, strict=True))
        table.append(
            [situation, group, f"{anchors:,}", str(len(found)), f"{mean(keep):.3f}",
             f"{first:.3f}", f"{mean(default):.3f}", f"{fixed[best]:.3f} ({best})",
             f"{mean(hindsight):.3f}", f"{mean(cell['re-embed'] for cell, _ in found):.3f}",
             f"{mean(hindsight) - mean(default):.3f}", f"{worst:+.3f}"]
        )  # fmt: skip
    return table


def peers(cells: Sequence[Cell]) -> Table:
    """Peer / our default / our setting with as many texts, by the number of anchors."""
    columns = ["has", "collections", "peer", *(f"{n:,} anchors" for n in ANCHORS), "default ahead"]
    rows: dict[tuple[str, str, str], list[str]] = {}
    ahead: dict[tuple[str, str, str], list[bool]] = {}
    for situation, group, anchors, found in groups(cells):
        for peer, equal in PEERS[situation].items():
            there = [
                values_of({**cell, "values": on_the_same(cell, peer)}, situation)
                for cell, values in found
                if peer in values
            ]
            if there:
                key = situation, group, peer
                row = rows.setdefault(key, [""] * len(ANCHORS))
                means = [mean(each[name] for each in there) for name in (peer, "default", equal)]
                row[ANCHORS.index(anchors)] = "/".join(f"{each:.3f}" for each in means)
                ahead.setdefault(key, []).extend(e["default"] >= e[peer] for e in there)
    return [columns] + [
        [*key, *row, f"{sum(ahead[key])} of {len(ahead[key])}"] for key, row in rows.items()
    ]


def comparison(cells: Sequence[Cell]) -> Table:
    """How often the comparison orders two encoders as judgements do, and what its weights cost.

    Costs are of searches with texts and without anchors, beside those before the comparison.
    """
    table = [
        ["collections", "clear pairs", "ordered as judged", "decided, and right", "compared",
         "mean gain", "worse after it", "worst"]
    ]  # fmt: skip
    for group in GROUPS:
        own = [
            each
            for each in cells
            if each["group"] == group and not each["anchors"] and each["difference"] is not None
        ]
        if not own:
            continue
        clear = [each for each in own if abs(each["re-embed"] - each["keep"]) > CLEAR]
        right = [
            each for each in clear if each["difference"] * (each["re-embed"] - each["keep"]) > 0
        ]
        decided = [each for each in clear if each["interval"][0] * each["interval"][1] > 0]
        agreed = [each for each in decided if each in right]
        changes = [
            values["default"] - values["first"]
            for values in (values_of(each, "old and texts") for each in own)
        ]
        table.append(
            [group, str(len(clear)), f"{len(right)} of {len(clear)}",
             f"{len(agreed)} of {len(decided)}", str(len(own)), f"{mean(changes):+.3f}",
             f"{sum(each < 0 for each in changes)} of {len(own)}", f"{min(changes):+.3f}"]
        )  # fmt: skip
    return table


def collections(cells: Sequence[Cell]) -> Table:
    """Each collection: the default of each situation with 300 anchors, 0 where texts are there."""
    table = [["collection", "cells", "keep", *SITUATIONS, "re-embed"]]
    for name in dict.fromkeys(each["collection"] for each in cells):
        row = []
        for situation in SITUATIONS:
            anchors = 0 if situation == "old and texts" else 300
            values = [
                values_of(each, situation).get("default")
                for each in cells
                if each["collection"] == name and each["anchors"] == anchors
            ]
            known = [each for each in values if each is not None]
            row.append(f"{mean(known):.3f}" if known else "")
        own = [each for each in cells if each["collection"] == name and not each["anchors"]]
        ends = [f"{mean(each[end] for each in own):.3f}" for end in ("keep", "re-embed")]
        table.append([name, str(len(own)), ends[0], *row, ends[1]])
    return table
