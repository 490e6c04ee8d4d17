"""An anchor set that was made from a store grows with what searches read there.

Native scores leave pairs behind: the stored vector of a row, and the vector of its text by the new
encoder. A job adds those that are unlike the anchors, if a fit with them translates held-out reads
better, and held-out anchors as well as before. The new version replaces the old one at once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from app.maths.anchors.reads import choose_different, held_out_cosine
from app.services.anchors import growth, spaces
from app.services.anchors.store_anchors import STORE_READ_S
from app.services.context import Services
from app.services.encoders import native_vectors
from app.services.jobs.progress import Progress
from app.services.jobs.runner import JobResult
from app.services.jobs.submission import submit_job
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import jobs as job_queries
from app.storage.queries import resources
from app.storage.queries import store_reads as queries
from app.storage.queries.store_reads import ReadBy
from app.stores.base import Store
from app.types import JobKind

#: most anchors of a set that grows: more teach little, and each makes a fit slower
MAX_LEARNED_SIZE = 2_000

#: reads of one job, and fewest new anchors that are worth a fit
READS_OF_JOB, FEWEST_NEW = 4_000, 8

#: one read in five is held out, and one anchor
HELD_OUT = 5

#: fewest held-out pairs that decide
FEWEST_HELD_OUT = 5


@dataclass(frozen=True)
class Lesson:
    """A set, the store that it was made from, and the new encoder."""

    anchor_set: str
    store: str
    target: str


def learn_later(
    services: Services,
    context: RequestContext,
    store: tables.StoreRow,
    target: tables.EncoderRow,
    anchor_set: str,
) -> tables.JobRow | None:
    """Queue a job that adds reads to the set; None where the set does not learn, or a job waits.

    A set learns that was made from the store, for the store's encoder and the target alone.
    """
    lesson = Lesson(anchor_set, store.name, target.name)
    with services.db.transaction() as session:
        row = resources.whole_set(session, context.project, anchor_set)
        if not _can_learn(row, store, target) or resources.users_of_anchor_set(session, row):
            return None
        waits = job_queries.has_unfinished(session, context.project, JobKind.learn, asdict(lesson))
    if waits or row.size > MAX_LEARNED_SIZE - FEWEST_NEW:
        return None
    return submit_job(services, context, JobKind.learn, asdict(lesson))


def run_learn(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run the job. Its result says how many anchors were added, and the held-out cosines.

    Raises the not-found errors, the errors of the store, and Conflict.
    """
    context, lesson = RequestContext.of_job(job), Lesson(**job.arguments)
    with services.db.transaction() as session:
        store = resources.by_name(session, tables.StoreRow, job.project, lesson.store)
        target = resources.by_name(session, tables.EncoderRow, job.project, lesson.target)
        row = resources.whole_set(session, job.project, lesson.anchor_set)
        ids = queries.reads(session, ReadBy(store.id, target.id), READS_OF_JOB)
    result: dict[str, Any] = {"anchor_set": row.name, "added": 0, "size": row.size}
    room = MAX_LEARNED_SIZE - row.size
    if not _can_learn(row, store, target) or not ids or room < FEWEST_NEW:
        return JobResult({**result, "reason": "The set cannot grow, or no row was read."})

    def read(opened: Store) -> tuple[list[int | str], Tensor, Tensor]:
        texts = opened.texts(list(ids))
        every = native_vectors.find_current(services, job.project, target, texts)
        made = {id: each for id, each in zip(ids, every, strict=True) if each is not None}
        page = opened.fetch(list(made))
        rows = [made[each] for each in page.ids]
        new = torch.stack(rows) if rows else torch.zeros(0, target.dim)
        return list(page.ids), torch.from_numpy(page.vectors.copy()), new

    found, old, new = services.stores.wait(store, read, within_s=STORE_READ_S)
    usable = old.isfinite().all(dim=1) & old.any(dim=1)
    found = [each for each, good in zip(found, usable.tolist(), strict=True) if good]
    old, new = old[usable], new[usable]
    if not found:
        return JobResult({**result, "reason": "No row that was read has both vectors now."})
    progress(1, 2)
    of = ReadBy(store.id, target.id)
    held = torch.tensor([int(of.key(each), 16) % HELD_OUT == 0 for each in found])
    before = [spaces.raw_anchors(services, _space(row, each)) for each in (store.encoder, target)]
    with services.fitting(job.project):
        chosen = choose_different(before[0], old[~held], room)
        added = old[~held][chosen], new[~held][chosen]
        if len(chosen) < FEWEST_NEW:
            reason = f"Fewer than {FEWEST_NEW} rows that were read are unlike the anchors."
            return JobResult({**result, "reason": reason})
        result["held_out"] = _compare(before, added, (old[held], new[held]))
    if not all(after >= ago for ago, after in result["held_out"].values()):
        reason = "A fit with the reads translates held-out pairs less well."
        return JobResult({**result, "reason": reason})
    names = store.encoder.name, target.name
    grown = growth.append_items(
        services,
        context,
        anchor_set=row.name,
        embeddings=dict(zip(names, added, strict=True)),
        inputs=None,
        roles=None,
        read=row,
    )
    return JobResult({**result, "added": len(chosen), "size": grown.size})


def _compare(
    before: list[Tensor], added: tuple[Tensor, Tensor], reads: tuple[Tensor, Tensor]
) -> dict[str, list[float]]:
    """Return the mean cosine of held-out pairs without and with the new anchors, by their kind."""
    held = torch.arange(len(before[0])) % HELD_OUT == 0
    kept = before[0][~held], before[1][~held]
    grown = [torch.cat([each, more]) for each, more in zip(kept, added, strict=True)]
    cosines = {}
    for kind, pairs in (("reads", reads), ("anchors", (before[0][held], before[1][held]))):
        if len(pairs[0]) >= FEWEST_HELD_OUT:
            fits = (kept, grown)
            cosines[kind] = [round(held_out_cosine(each[0], each[1], *pairs), 4) for each in fits]
    return cosines


def has_learning_set(services: Services, store: tables.StoreRow) -> bool:
    """Return whether reads of the store can add anchors to a set, for any new encoder."""
    with services.db.transaction() as session:
        return any(
            _taught_encoder(row, store) and not resources.users_of_anchor_set(session, row)
            for row in resources.sets_with_provenance(session, store.project)
        )


def _can_learn(row: tables.AnchorSetRow, store: tables.StoreRow, target: tables.EncoderRow) -> bool:
    return _taught_encoder(row, store) == target.id


def _taught_encoder(row: tables.AnchorSetRow, store: tables.StoreRow) -> str | None:
    """Return the id of the one encoder, with the store's, of a set that was made from the store."""
    if (row.provenance or {}).get("store") != store.name:
        return None
    encoders = {space.encoder_id for space in row.spaces}
    others = encoders - {store.encoder_id}
    return next(iter(others)) if len(encoders) == 2 and len(others) == 1 else None


def _space(row: tables.AnchorSetRow, encoder: tables.EncoderRow) -> tables.SpaceRow:
    return next(space for space in row.spaces if space.encoder_id == encoder.id)
