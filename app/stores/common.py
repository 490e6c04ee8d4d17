"""What several connectors need: the other side, translated changes, and whose fault an error is."""

from __future__ import annotations

from collections.abc import Collection

from app.stores.base import Changes, Side, StoreVectors, TranslateRows


def opposite(side: Side) -> Side:
    return "new" if side == "old" else "old"


def translate_changes(translate: TranslateRows, changes: Changes) -> StoreVectors:
    """Return the translated vectors (n, d) of changes; of none, without a call."""
    return translate(changes.ids, changes.vectors) if len(changes.ids) else changes.vectors


def raised_by(error: BaseException, packages: Collection[str]) -> bool:
    """Return whether a call of one of these packages raised an error, and not our own code.

    Libraries raise ValueError and RuntimeError for faults of a store; so do mistakes of ours. The
    functions that ran when the error was raised tell them apart: the last one that is ours or
    theirs.
    """
    theirs = False
    trace = error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        theirs = package in packages or (theirs and package != "app")
        trace = trace.tb_next
    return theirs
