"""The words of the pages for the values that the services answer."""

from __future__ import annotations

from typing import NamedTuple

from app.maths.relevance.advice import AdvisedOption, Certainty
from app.types import MigrationState


class OptionWords(NamedTuple):
    """An option of the advice: its title, and what it means."""

    title: str
    meaning: str


OPTIONS: dict[AdvisedOption, OptionWords] = {
    "keep": OptionWords("Keep", "Stay with the old encoder and its index. No work."),
    "fuse": OptionWords(
        "Fuse",
        "Search the old index as before, and reorder the candidates by the scores of both "
        "encoders. The index does not change.",
    ),
    "cascade": OptionWords(
        "Cascade",
        "Search the old index with translated queries, and reorder the candidates by the new "
        "encoder. The index does not change.",
    ),
    "native": OptionWords(
        "Native",
        "Search the old index, and let the new encoder embed the 20 best candidates of each query. "
        "The index does not change.",
    ),
    "translate": OptionWords(
        "Translate", "Translate the stored vectors into the new encoder's space."
    ),
    "re-embed": OptionWords("Re-embed", "Encode every item again with the new encoder."),
}

CERTAINTIES: dict[Certainty, str] = {
    "measured": "measured",
    "undecided": "measured, undecided",
    "expected": "expected",
    "unknown": "not measured",
}

#: what each state of a migration means, and the colour of its badge
MIGRATION_STATES: dict[MigrationState, tuple[str, str]] = {
    MigrationState.planned: ("The store is as it was.", ""),
    MigrationState.running: ("Rows get new vectors next to the old ones.", "fair"),
    MigrationState.paused: ("The run stopped. It continues from there.", "fair"),
    MigrationState.filled: ("Every row has a new vector. Clients see the old ones.", "good"),
    MigrationState.cut_over: ("Clients see the new vectors. The old ones are kept.", "good"),
    MigrationState.rolled_back: ("Clients see the old vectors again.", ""),
    MigrationState.finished: ("The migration has ended.", "good"),
    MigrationState.abandoned: ("The new vectors are deleted.", ""),
}


class CallWords(NamedTuple):
    """A call of a migration: its button, what it does to the rows, and whether it deletes."""

    button: str
    effect: str
    deletes: bool = False


#: the calls of a migration, in the order of the buttons
CALLS: dict[str, CallWords] = {
    "run": CallWords(
        "Run",
        "Every row gets a new vector next to the old one. Clients of the store see the old "
        "vectors, and notice nothing.",
    ),
    "pause": CallWords(
        "Pause", "The run stops after its present batch. No row changes, and Run continues there."
    ),
    "verify": CallWords(
        "Verify",
        "Rows, checksums and sampled vectors are checked, and the recall of the index where the "
        "store has a cutover. No row changes.",
    ),
    "cutover": CallWords(
        "Cut over",
        "Clients of the store see the new vectors, so they must embed queries with the new "
        "encoder from now on. The old vectors stay, and Roll back undoes it.",
    ),
    "rollback": CallWords(
        "Roll back",
        "Clients of the store see the old vectors again. Rows that they wrote since the cutover "
        "get translated vectors. The new vectors stay.",
    ),
    "finish": CallWords(
        "Finish",
        "The old vectors are deleted, and the store belongs to the new encoder. Nothing can "
        "undo it.",
        True,
    ),
    "sync": CallWords(
        "Synchronise", "Rows that clients wrote get their other vector now. No other row changes."
    ),
    "abandon": CallWords(
        "Abandon",
        "The new vectors are deleted. The old ones stay as they are. Another migration begins "
        "again with all rows.",
        True,
    ),
}

#: `finish` of a store without a cutover
FINISH_EMBEDDED = CallWords(
    "Finish",
    "The migration is forgotten here. The store keeps both vectors and its encoder; the "
    "application opens the new vectors.",
)

#: the colour of each result of a check of an encoder
CHECK_TONES: dict[str, str] = {
    "unchanged": "good",
    "moved": "bad",
    "replaced": "bad",
    "unchecked": "fair",
}
