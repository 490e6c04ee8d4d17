"""Checks of a filled migration: rows, checksums, sampled vectors, and the recall of the index."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from app.context import Services
from app.db import tables
from app.errors import StoreUnsupported
from app.jobs.progress import Progress
from app.jobs.worker import JobResult
from app.moves.context import FEW_CHANGES, MigrationContext, cosines, open_migration
from app.moves.lease import Lease
from app.moves.sync import drain_held
from app.stores.port import HearRows, Hits, Metric, Migration, Search, Side, StoreId, StoreVectors

#: rows whose new vectors are compared
VERIFIED_ROWS = 1000

#: rows whose texts are embedded again
EMBEDDED_AGAIN = 100

#: looks at a row that differs: a client may write it between two reads
MAX_LOOKS = 3

#: queries of the index, results of each, and the number that are searched at once
VERIFY_QUERIES = 100
VERIFY_K = 10
QUERIES_AT_ONCE = 10

#: time after which no further queries are searched: one exact search may take seconds
VERIFY_INDEX_S = 60.0

#: scores that differ by less, relatively, belong to rows that are equally near
EQUAL_SCORES = 1e-6

#: largest loss of recall, against the old index, that passes although the plan asks for more
EQUAL_RECALL = 0.02

#: share of the rows that may lack a new vector while clients write
LIVE_ROWS = 0.001


@dataclass(frozen=True)
class Check:
    """One check. passed: None where nothing could be compared, and `detail` says why."""

    name: str
    passed: bool | None
    detail: str
    found: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """Return the check as JSON."""
        return {"passed": self.passed, "detail": self.detail, **self.found}


def run_verify(services: Services, held: Lease, progress: Progress) -> JobResult:
    """Compare both sides of the store, and record what was found in the row."""
    move = open_migration(services, held.row)
    done = 0

    def report(phase: str, **facts: int) -> None:
        nonlocal done
        done += 1
        progress(done, done + 1, {"phase": phase, **facts})

    report("sync")
    drain_held(move, held)
    report("rows")
    checks = [check_rows(move, held.row)]
    report("checksum")
    hear: HearRows = lambda rows: report("checksum", checked=rows)  # noqa: E731
    checks.append(check_payloads(move, held, hear))
    report("sample")
    checks.append(check_sample(move, held))
    if isinstance(move.migration, Migration):  # else the application measures its new index
        checks.append(check_index(move, float(held.row.plan.get("min_recall", 0.95)), report))
    found = {
        "at": tables.now().isoformat(),
        "applied": held.position.get("applied", 0),
        "passed": all(check.passed is not False for check in checks),
        **{check.name: check.document() for check in checks},
    }
    held.save(found={**held.row.found, "verify": found}, position=move.usage.add_to(held.position))
    return JobResult(found)


def check_rows(move: MigrationContext, row: tables.MigrationRow) -> Check:
    """Compare the numbers of rows with a vector on both sides."""
    total, new = move.migration.count_old(), move.migration.count()
    if total is None:
        total = move.store.facts().rows
    skipped = int(row.position.get("skipped", 0))
    before = int(row.found.get("before", {}).get("rows", 0))
    found: dict[str, Any] = {"rows": total, "new": new, "skipped": skipped, "before": before}
    if total == 0:
        detail = (
            f"The store has no rows, and had {before:,} when the run began. Abandon the migration, "
            "or call `verify` again when it has rows."
        )
        return Check("rows", False, detail, found)
    # A cutover gives skipped rows an empty vector, which a store may count.
    missing = max(total - new - skipped, new - total, 0)
    live = move.store.capabilities.captures_writes
    if "cutover" in row.found and total > new and not live and move.live.is_cut_over():
        ids = only_old(move)
        found["only_old"] = ids[:20]
        detail = (
            f"Only the old side has {len(ids):,} rows: clients deleted them since the cutover, or "
            f"wrote them past the new side. `finish` deletes them: {ids[:5]}."
        )
        return Check("rows", None, detail, found)
    followed = live and row.position.get("applied")
    # A synchronisation leaves a few changes, which are many of a small table.
    allowed = max(FEW_CHANGES, LIVE_ROWS * total) if followed else 0
    detail = f"The sides differ by {missing:,} row{'s' * (missing != 1)}"
    if missing == 0:
        detail = f"Every row with a vector has a new one{', but skipped ones' * bool(skipped)}."
    elif missing <= allowed:
        detail += ", because clients write meanwhile."
    elif not isinstance(move.migration, Migration):
        detail += ": rows were added or deleted since the run. Stop writes, and call `run` again."
    else:
        detail += (
            ": a client wrote during `verify`, or a run did not end. Call `sync`, and `verify`. If "
            "they still differ, call `run` again, or abandon; after a cutover, `rollback`: then a "
            "client has written to the old vectors."
        )
    return Check("rows", missing <= allowed, detail, found)


def only_old(move: MigrationContext) -> list[StoreId]:
    """Return the rows that the new side lacks."""
    cursor, found = None, list[StoreId]()
    while True:
        page = move.store.scroll(cursor, VERIFIED_ROWS)
        found += sorted({*page.ids}.difference(move.migration.read(page.ids).ids), key=str)
        if (cursor := page.cursor) is None:
            return found


def check_payloads(move: MigrationContext, held: Lease, hear: HearRows) -> Check:
    """Compare all that is not the vector on both sides, or with its state before the run."""
    if isinstance(move.migration, Migration):
        different = move.migration.count_different(hear, partial(drain_held, move, held))
        if different is None:
            detail = "A client deletes all rows meanwhile. Call `verify` again."
            return Check("payloads", None, detail, {})
        detail = "All that is not the vector is the same on both sides."
        if different:
            why = "a client writes them"
            if move.store.capabilities.captures_writes:
                why = "the table was rewritten, or its triggers were disabled"
            detail = (
                f"{different} rows differ between both sides in more than the vector: {why}. They "
                "are copied again: call `verify` again."
            )
        return Check("payloads", different == 0, detail, {"different": different})
    before, now = held.row.found.get("before", {}).get("checksum"), move.migration.checksum(hear)
    found = {"before": before, "now": now and now.digest}
    if found["now"] == before:
        return Check("payloads", True, "All that is not the vector is as before the run.", found)
    detail = (
        "Rows changed since the run began, and this kind of store does not capture writes. Stop "
        "the writes, and call `run` again."
    )
    return Check("payloads", False, detail, {**found, "again": "run"})


def check_sample(move: MigrationContext, held: Lease) -> Check:
    """Compare new vectors of sampled rows with those that the plan gives them now.

    Texts are embedded again, those of fewer rows, because that costs money: `spent` counts it.
    """
    embeds = move.embedder is not None
    # Other rows than the last time, and than the anchors, which are a sample too.
    count = EMBEDDED_AGAIN if embeds else VERIFIED_ROWS
    page = move.store.sample(count, seed=time.time_ns() % 2**31)
    last = held.row.found.get("verify", {}).get("sample", {}).get("first", [])
    ids, compared = list(dict.fromkeys([*last, *page.ids])), 0  # what was wrong is looked at again
    differing: Sequence[StoreId] = ids
    for look in range(MAX_LOOKS):
        equal, differing = compare_rows(move, differing)
        compared += equal
        if not differing:
            break
        if look + 1 < MAX_LOOKS:
            drain_held(move, held)
    compared += len(differing)
    found = {"rows": compared, "different": len(differing), "first": list(differing[:20])}
    expected = "the target gives their texts" if embeds else "the translation gives"
    if differing:
        detail = f"{len(differing)} of {len(ids)} rows have another new vector than {expected}: "
        detail += f"{differing[:5]}. Write them again, with a changed field, and call `sync`."
        return Check("sample", False, detail, found)
    if compared == 0:
        detail = (
            f"No new vector of {len(ids)} sampled rows could be compared: the rows have no text "
            "and no direction, or the target refuses their texts. Check the target."
        )
        return Check("sample", False, detail, found)
    return Check("sample", True, f"The new vectors are those that {expected}.", found)


def compare_rows(move: MigrationContext, ids: Sequence[StoreId]) -> tuple[int, list[StoreId]]:
    """Return the number of rows with the right new vector, and the rows with a wrong one.

    Right is that of the row's text, or one of two vectors that are translations of each other in
    either direction. A row that cannot have a new vector now is neither.
    """
    old, new = move.store.fetch(ids), move.migration.read(ids)
    place = {each: number for number, each in enumerate(new.ids)}
    forward = move.make_new(old.ids, old.vectors, anew=True)
    paired = [number for number, each in enumerate(old.ids) if each in place]
    partners = [place[old.ids[number]] for number in paired]
    same = np.zeros(len(old.ids), np.bool_)
    found, expected = new.vectors[partners], forward.vectors[paired]
    same[paired] |= move.are_equal(found, expected)
    if "cutover" in move.row.found:  # a row that a client wrote since has an old vector made of it
        back = move.make_old([old.ids[number] for number in paired], found)
        same[paired] |= move.are_equal(old.vectors[paired], back.vectors)
    right = int(same.sum())
    if "cutover" in move.row.found and not move.store.capabilities.captures_writes:
        same |= np.array([each not in place for each in old.ids], np.bool_)  # deleted by a client
    same[forward.missing] = True
    return right, [each for number, each in enumerate(old.ids) if not same[number]]


def check_index(move: MigrationContext, least: float, report: Any) -> Check:
    """Measure recall@10 of both indexes against exact searches of the same side.

    The new index must find `least`, or lose at most EQUAL_RECALL against the old one.
    The queries are the vectors of sampled rows on each side, as many as VERIFY_INDEX_S allows; a
    row does not count as its own result.
    """
    page = move.store.sample(VERIFY_QUERIES, seed=1)
    new = move.migration.read(page.ids)
    found: dict[str, Any] = {"k": VERIFY_K, "least": least}
    try:
        before = measure_recall(move, page.ids, page.vectors, "old", report)
        found |= {"before": _mean(before), "queries_before": len(before)}
        recalls = measure_recall(move, new.ids, new.vectors, "new", report)
        found |= {"after": _mean(recalls), "queries_after": len(recalls)}
    except StoreUnsupported as error:
        return Check("index", None, f"The index cannot be measured. {error.detail}", found)
    after = found["after"]
    if after is None:
        return Check("index", None, "The store has no rows to search for.", found)
    what = "index" if move.store.facts().indexed else "search, which has no index,"
    detail = f"The {what} finds {after:.3f} of the ten nearest rows"
    if after >= least:
        return Check("index", True, f"{detail}.", found)
    before = found["before"]
    if after > 0 and before is not None and after >= before - EQUAL_RECALL:
        return Check("index", True, f"{detail}, and the old index {before:.3f}.", found)
    detail += f", below {least:.3f}. {move.store.search_advice()}"
    return Check("index", False, detail, found)


def measure_recall(
    move: MigrationContext, ids: Sequence[StoreId], queries: StoreVectors, side: Side, report: Any
) -> list[float]:
    """Return the recall@10 of the index of one side, by query.

    Scores are computed from the vectors of the results: those of a quantised index are rough.
    """
    if not move.store.capabilities.exact_search:
        raise StoreUnsupported("The store has no exact searches to compare with.")
    move.store.close()  # new connections have the present settings of the database
    metric = move.store.facts().metric
    recalls: list[float] = []
    # Rows that even the exact search hides are missing from both results, and count as missed.
    others = int(queries.any(axis=1).sum()) - 1
    ends = time.monotonic() + VERIFY_INDEX_S
    for start in range(0, len(ids), QUERIES_AT_ONCE):
        if start and time.monotonic() >= ends:
            break
        report(f"index of the {side} vectors")
        part = queries[start : start + QUERIES_AT_ONCE]
        exact = move.store.search(Search(part, VERIFY_K + 1, side=side, exact=True, vectors=True))
        approximate = move.store.search(Search(part, VERIFY_K + 1, side=side, vectors=True))
        for own, query, right, result in zip(
            ids[start : start + QUERIES_AT_ONCE], part, exact, approximate, strict=True
        ):
            nearest = _scores(query, right, own, metric)
            wanted = max(len(nearest), min(VERIFY_K, others))
            if wanted == 0 or not query.any():  # a query without a direction
                continue
            least = nearest.min(initial=np.finfo(np.float32).max)
            limit = least - EQUAL_SCORES * max(1.0, abs(least))
            recalls.append(float((_scores(query, result, own, metric) >= limit).sum()) / wanted)
    return recalls


def _scores(query: StoreVectors, hits: Hits, own: StoreId, metric: Metric) -> StoreVectors:
    """Return the scores of the first results that are not the query's own row."""
    kept = [number for number, each in enumerate(hits.ids) if each != own][:VERIFY_K]
    assert hits.vectors is not None
    rows = hits.vectors[kept]
    if metric == "cosine":
        return cosines(np.broadcast_to(query, rows.shape), rows)
    if metric == "dot":
        return np.asarray(rows @ query)
    return np.asarray(-np.linalg.norm(rows - query, axis=1))


def _mean(recalls: Sequence[float]) -> float | None:
    return round(float(np.mean(recalls)), 4) if recalls else None
