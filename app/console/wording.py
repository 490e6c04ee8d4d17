"""The words of the pages for the values that the services answer."""

from __future__ import annotations

import re
from typing import NamedTuple

from app.console.formats import duration
from app.maths.relevance.advice import AdvisedOption, Certainty
from app.moves.service import MigrationStatus
from app.stores.registry import EMBEDDED, has_cutover
from app.types import JobState, MigrationState

#: what each option of the advice means
OPTIONS: dict[AdvisedOption, str] = {
    "keep": "Stay with the old encoder and its index. No work.",
    "fuse": "Search the old index as before, and reorder the candidates by the scores of both "
    "encoders. The index does not change.",
    "cascade": "Search the old index with translated queries, and reorder the candidates by the "
    "new encoder. The index does not change.",
    "native": "Search the old index, and let the new encoder embed the best candidates of each "
    "query. The index does not change.",
    "translate": "Translate the stored vectors into the new encoder's space.",
    "re-embed": "Embed every row again with the new encoder.",
}

CERTAINTIES: dict[Certainty, str] = {
    "measured": "measured",
    "undecided": "measured, undecided",
    "expected": "expected",
    "unknown": "not measured",
}

#: what each state of a migration means, and the colour of its badge
MIGRATION_STATES: dict[MigrationState, tuple[str, str]] = {
    MigrationState.planned: ("Nothing is written to the store yet.", ""),
    MigrationState.running: (
        "Rows get new vectors next to the old ones, and between them those that clients write.",
        "fair",
    ),
    MigrationState.paused: ("It is paused, and continues from here. No row is lost.", "fair"),
    MigrationState.filled: ("Every row has a new vector. Clients still see the old ones.", "good"),
    MigrationState.cut_over: (
        "Clients see the new vectors. Look at the searches of your application: Roll back shows "
        "the old vectors again, and Finish deletes them.",
        "good",
    ),
    MigrationState.rolled_back: ("Clients see the old vectors again. The new ones are kept.", ""),
    MigrationState.finished: ("The old vectors are deleted. Nothing is left to do.", "good"),
    MigrationState.abandoned: ("The store is as it was before this migration.", ""),
}

#: what a job does in each phase
PHASES: dict[str, str] = {
    "prepare": "The store gets a place for the new vectors.",
    "checksum": "Everything but the vectors is compared.",
    "anchors": "Rows from all over the store are embedded first, so that searches by the new "
    "encoder work meanwhile.",
    "changes": "Rows that clients wrote meanwhile get their vectors.",
    "index": "The index of the new vectors is built.",
}

#: what a job does, by its action
WORKS: dict[str, str] = {
    "run": MIGRATION_STATES[MigrationState.running][0],
    "verify": "Both sides of the store are compared.",
    "sync": "Rows that clients wrote get their other vector.",
}

#: what the problems that a reader can mend are called here, by their codes
PROBLEMS: dict[str, str] = {
    "limit-reached": "The limit is reached.",
    "encoder-unavailable": "The encoder gives no vectors.",
    "store-full": "The store has no room left.",
    "store-unavailable": "The store does not answer.",
}


def say_state(move: MigrationStatus) -> str:
    """Returns where a migration is, in a sentence or two."""
    if move.job is None or not move.is_busy:
        if move.is_interrupted:
            button, is_switch = CALLS[move.next[0]].button, move.next[0] in ("cutover", "rollback")
            until = " Until then, clients may get errors." if is_switch else ""
            return f"{button} was interrupted. Press it again.{until}"
        if move.state == MigrationState.finished and not has_cutover(move.row.store.kind):
            place, id_ = EMBEDDED[move.row.store.kind], move.row.id[:8]
            return f"Your application opens the new {place}, whose name has {id_}. {KEPT_EMBEDDED}"
        return MIGRATION_STATES[move.state][0]
    if move.job.state != JobState.running:
        return "It waits for a worker."
    if away := move.progress.get("waiting"):
        return (
            f"{away['detail']} The run asks again in {duration(away['again_s'])}, and pauses after "
            f"{duration(away['pauses_s'])} without an answer."
        )
    return PHASES.get(move.progress["phase"] or "", WORKS[move.job.arguments["action"]])


def say_problem(move: MigrationStatus) -> tuple[str, str] | None:
    """Returns what stopped a migration, and what to do; None while it goes well."""
    error = move.error
    if error is None or move.row.ended_at is not None:
        return None
    title = PROBLEMS.get(error["code"], f"It stopped: {error['code']}.")
    return title, error["detail"]


class CallWords(NamedTuple):
    """A call of a migration: its button, and what it does to the rows.

    deletes    whether it deletes vectors
    asks       whether a page asks again, because clients see a difference
    asks_name  whether a person types the store's name, because nothing can undo it
    """

    button: str
    effect: str
    deletes: bool = False
    asks: bool = False
    asks_name: bool = False


CALLS: dict[str, CallWords] = {
    "run": CallWords(
        "Run",
        "Every row gets a new vector next to the old one. Clients of the store see the old "
        "vectors, and notice nothing.",
    ),
    "pause": CallWords("Pause", "The run stops after its present batch. Run continues there."),
    "verify": CallWords(
        "Verify",
        "The number of rows, everything but the vectors, a sample of new vectors and what the "
        "index finds are checked. Rows that clients wrote get their other vector first.",
    ),
    "cutover": CallWords(
        "Cut over",
        "Clients of the store see the new vectors, and must embed queries with the new encoder "
        "from then on. The old vectors stay, and Roll back undoes it.",
        asks=True,
    ),
    "rollback": CallWords(
        "Roll back",
        "Clients of the store see the old vectors again, and must embed queries with the old "
        "encoder. Rows that they wrote since the cutover keep a vector of each encoder.",
        asks=True,
    ),
    "finish": CallWords(
        "Finish",
        "The old vectors are deleted for good, and the store belongs to the new encoder. Nothing "
        "can undo it. Until then Roll back works, and the store needs the disk of both. Stop what "
        "still writes vectors of the old encoder first: nothing refuses them afterwards.",
        deletes=True,
        asks=True,
        asks_name=True,
    ),
    "sync": CallWords(
        "Synchronise", "Rows that clients wrote get their other vector now. No other row changes."
    ),
    "abandon": CallWords(
        "Abandon",
        "The new vectors are deleted. The old ones stay as they are. Another migration begins "
        "again with all rows.",
        deletes=True,
        asks=True,
    ),
}

#: what an error says of the API, and what these pages say
OWN_WORDS = {
    "`price_per_million_tokens`": "“Price of a million tokens”",
    "more than `max_price`": "more than the limit",
    "`max_price`": "“Pause before it costs more than”",
    "send `force_space: true`": "use `anchorage migrate plan --force-space`",
    "send `fill: translate`": "translate the vectors",
    "POST /stores makes": "`anchorage stores connect` makes",
}


def in_own_words(text: str) -> str:
    """Returns an error's text with buttons and fields of the pages for those of the API."""
    for other, own in OWN_WORDS.items():
        text = text.replace(other, own)

    def press(found: re.Match[str]) -> str:
        return ("Press " if found[1] else "") + f"“{CALLS[found[2]].button}”"

    return re.sub(rf"(Call )?`({'|'.join(CALLS)})`", press, text)


#: the calls that have a small button where they do not have the large one
OTHER_CALLS = ("pause", "rollback", "finish", "sync", "verify", "abandon")


def button_of(words: CallWords, state: MigrationState) -> str:
    """Returns the button of a call, which has another name for a run that continues."""
    is_continued = words.button == "Run" and state == MigrationState.paused
    return "Continue" if is_continued else words.button


#: what a store without a cutover is after `finish`
KEPT_EMBEDDED = (
    "This store keeps the old vectors: to search the new ones here, connect them as another store."
)

#: what calls of a store without a cutover do
RUN_EMBEDDED = CallWords(
    "Run",
    "First stop the writes of your application, until it opens the new vectors. Every row gets a "
    "new vector next to the old one.",
)
FINISH_EMBEDDED = CallWords(
    "Finish",
    "The migration ends here. Both vectors stay, and your application opens the new ones. "
    + KEPT_EMBEDDED,
    asks=True,
)

#: the colour of each result of a check of an encoder
CHECK_TONES: dict[str, str] = {
    "unchanged": "good",
    "moved": "bad",
    "replaced": "bad",
    "unchecked": "fair",
}
