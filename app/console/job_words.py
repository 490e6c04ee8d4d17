"""What a job is called, and what came of it, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.console import wording
from app.console.formats import decimals, signed, whole
from app.context import Services
from app.db import tables
from app.moves.service import list_migrations
from app.types import JobKind, JobState

#: migrations whose stores name their jobs: the newest of a project
MAX_MIGRATIONS = 200


@dataclass(frozen=True)
class JobWords:
    """A job's name, what came of it, its store, and the seconds that it took or takes.

    store    None: it works on no store
    seconds  None before it starts
    """

    title: str
    sentence: str
    store: str | None
    seconds: float | None


def describe_jobs(
    services: Services, project: str, rows: list[tables.JobRow]
) -> dict[str, JobWords]:
    """Returns the words for jobs, whose arguments and results are loaded, by their ids."""
    stores: dict[str, str] = {}
    if any(row.kind == JobKind.migrate for row in rows):
        moves = list_migrations(services, project, limit=MAX_MIGRATIONS)
        stores = {move.row.id: move.row.store.name for move in moves}
    return {row.id: _describe(row, stores) for row in rows}


def _describe(row: tables.JobRow, stores: Mapping[str, str]) -> JobWords:
    arguments = row.arguments
    facts = {**arguments, **arguments.get("request", {}), **arguments.get("of_store", {})}
    store = stores.get(facts.get("migration", ""), facts.get("store"))
    ended = row.finished_at or tables.now()
    seconds = None if row.started_at is None else (ended - row.started_at).total_seconds()
    return JobWords(_title(row.kind, facts, store), _sentence(row, facts), store, seconds)


def _title(kind: str, facts: Mapping[str, Any], store: str | None) -> str:
    """Returns the name of a job: what it does, and to what."""
    pair = " → ".join(filter(None, (facts.get("source"), facts.get("target"))))
    anchors = facts.get("anchor_set") or facts.get("name")
    about: dict[str, str | None] = {
        JobKind.migrate: store or "a deleted store",
        JobKind.compare: " and ".join(facts.get("encoders") or ()),
        JobKind.embed: anchors,
        JobKind.bootstrap: anchors,
    }
    what = wording.JOB_KINDS.get(kind, kind)
    if kind == JobKind.migrate and facts.get("action") in wording.CALLS:
        what = wording.CALLS[facts["action"]].button
    return f"{what}: {about.get(kind) or pair or anchors}"


def _sentence(row: tables.JobRow, facts: Mapping[str, Any]) -> str:
    """Returns what came of a job, or where it is."""
    if row.error:
        return str(row.error["detail"])
    if row.state == JobState.succeeded:
        return _outcome(row.result or {}, facts)
    if row.state == JobState.running and row.cancel_requested:
        return "A client asked it to stop. It ends at its next step."
    phase = row.progress.get("phase")
    return {
        JobState.queued: "It waits for a worker.",
        JobState.cancelled: "A client stopped it.",
    }.get(JobState(row.state), f"It works: {phase}." if phase else "It works.")


def _outcome(result: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    if "results" in result:  # an evaluation of judgements
        best = result["best"]
        over = result["results"][best]["over_keep"]
        gain = "" if over is None else f", {signed(over['ndcg_10'])} over keep"
        return (
            f"{wording.SEARCHES[best]} is the best of {len(result['results'])} options on "
            f"{result['queries']} judged queries: nDCG@10 "
            f"{decimals(result['results'][best]['ndcg_10'])}{gain}."
        )
    if "translated" in result:  # an evaluation of pairs
        found = result["translated"]
        return (
            f"Recall@{result['k']} {decimals(found['recall'])} among {whole(result['index'])} "
            f"items, centred cosine {decimals(found['cosine'])}."
        )
    if "pairs" in result and "texts" in result:  # a comparison
        verdicts = [
            f"{each['target']} less {each['source']}: {signed(each['difference'])} MRR, "
            f"{each['verdict']}"
            for each in result["pairs"]
        ]
        return f"On {result['texts']} texts, {'; '.join(verdicts)}."
    if "passed" in result:
        return "Every check passed." if result["passed"] else "A check failed."
    if "rows" in result:
        return f"{whole(result['rows'])} rows have a new vector."
    if "applied" in result:
        return f"{whole(result['applied'])} writes of clients were applied."
    if "size" in result:
        return f"The set {result['anchor_set']} has {whole(result['size'])} anchors."
    if "translator" in result:
        return f"A translator by {facts.get('anchor_set')} is ready."
    return "It is done."
