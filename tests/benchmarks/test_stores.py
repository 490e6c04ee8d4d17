"""The table of stores: one store can be measured anew."""

from __future__ import annotations

from benchmarks.stores.report import COLUMNS, merge


def row(store: str, insert: str) -> list[str]:
    return [store, "embedded", insert, *[""] * (len(COLUMNS) - 3)]


def test_a_store_that_is_measured_anew_replaces_its_row_only() -> None:
    labels = ["a", "b", "c"]
    known = [COLUMNS, row("a", "1"), row("c", "2")]
    assert merge(known, row("c", "3"), labels) == [COLUMNS, row("a", "1"), row("c", "3")]
    assert merge(known, row("b", "4"), labels)[1:] == [row("a", "1"), row("b", "4"), row("c", "2")]
    assert merge([["store", "sweep"], ["a", "1"]], row("b", "4"), labels) == [
        COLUMNS,
        row("b", "4"),
    ]
