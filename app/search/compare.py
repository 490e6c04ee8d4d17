"""Compares encoders on texts, without judgements, and remembers the result for each pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations, permutations
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from torch import Tensor

from app.anchors.embedding import read_inputs, write_inputs
from app.anchors.from_store import STORE_READ_S
from app.anchors.store_texts import require_text_field
from app.context import RequestContext, Services
from app.db import resources, tables
from app.encoders.encoding import encode
from app.encoders.models.base import Inputs
from app.errors import AnchorageError, Conflict, InvalidRequest, NotExactlyOne
from app.jobs.progress import Progress
from app.jobs.submission import submit_job
from app.jobs.worker import JobResult
from app.maths.quality.metrics import IntervalEstimate
from app.maths.relevance.cloze import (
    FEWEST_TEXTS,
    MIN_WORDS,
    cut_windows,
    mean_interval,
    reciprocal_ranks,
)
from app.search.decide_schemas import CompareRequest
from app.search.scoring import embeds_texts
from app.types import EncoderKind, InputRole, JobKind

#: rows of a store that are read for each text, because some are short
SAMPLED_PER_TEXT = 3


def compare_later(
    services: Services, context: RequestContext, request: CompareRequest
) -> tables.JobRow:
    """Check the request, and queue a job.

    Raises NotExactlyOne, the not-found errors, InvalidRequest, StoreUnsupported,
    StorageUnavailable, TooManyJobs, QueueFull.
    """
    if (request.store is None) == (request.inputs is None):
        raise NotExactlyOne("Send exactly one of `store` and `inputs`.", field="store")
    _check(services, context.project, request)
    arguments = request.model_dump(exclude={"inputs"})
    if request.inputs is not None:
        pairs = _cut(services, request.inputs, request.texts, field="inputs")
        pieces = Inputs([piece for pair in pairs for piece in pair])
        arguments["blobs"] = {"pieces": write_inputs(services, pieces)}
    return submit_job(services, context, JobKind.compare, arguments)


def compare_once(
    services: Services,
    context: RequestContext,
    source: tables.EncoderRow,
    target: tables.EncoderRow,
    texts_of: tables.StoreRow | tables.AnchorSetRow,
) -> bool:
    """Queue a comparison of a source and a target, if there never was one.

    texts_of  the store whose texts are read, or the anchor set whose inputs are

    Return False, and queue nothing, where an endpoint would charge for it: a person decides.
    """

    def claim(session: Session, job: tables.JobRow) -> None:
        row = session.get(tables.EncoderRow, target.id, with_for_update=True)
        if row is None or source.id in (row.comparisons or {}):
            raise Conflict("Another request has queued this comparison.")
        row.comparisons = {**(row.comparisons or {}), source.id: {"job": job.id}}

    if source.id in (target.comparisons or {}) or not all(map(embeds_texts, (source, target))):
        return True
    if EncoderKind.openai in (source.kind, target.kind):
        return False
    request = CompareRequest(encoders=[source.name, target.name])
    arguments = request.model_dump(exclude={"inputs"})
    place = "store" if isinstance(texts_of, tables.StoreRow) else "anchor_set"
    with suppress(AnchorageError):  # a search or a migration goes on without it
        submit_job(
            services, context, JobKind.compare, {**arguments, place: texts_of.name}, begin=claim
        )
    return True


def run_compare(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Compare the encoders. The result's `write` remembers it.

    Raises the errors of the store, those of `encode`, and as `compare_later`; `write` raises
    Conflict.
    """
    arguments, context = dict(job.arguments), RequestContext.of_job(job)
    blobs, anchor_set = arguments.pop("blobs", None), arguments.pop("anchor_set", None)
    request = CompareRequest(**arguments)
    store, encoders = _check(services, context.project, request)
    if anchor_set is not None:
        with services.db.transaction() as session:
            row = resources.by_name(session, tables.AnchorSetRow, context.project, anchor_set)
        inputs = read_inputs(services, row.inputs, of="this job").values if row.inputs else []
        items = [each for each in inputs if isinstance(each, str)]
        pairs = _cut(services, items, request.texts, field="inputs")
    elif store is None:
        read = read_inputs(services, blobs["pieces"], of="this job")
        pieces = [str(each) for each in read.values]
        pairs = list(zip(pieces[::2], pieces[1::2], strict=True))
    else:
        sampled = request.texts * SAMPLED_PER_TEXT
        texts = services.stores.wait(
            store,
            lambda opened: opened.texts(opened.sample(sampled, seed=0).ids),
            within_s=STORE_READ_S,
        )
        pairs = _cut(services, [each or "" for each in texts], request.texts, field="store")
    ranks: dict[str, Tensor] = {}
    total = 2 * len(pairs) * len(encoders)
    for encoder in encoders:
        sides = []
        for side, role in enumerate((InputRole.query, InputRole.document)):
            before = len(pairs) * (2 * len(ranks) + side)
            made = encode(
                services,
                context,
                encoder,
                [each[side] for each in pairs],
                role=role,
                on_progress=lambda done, before=before: progress(before + done, total),  # type: ignore[misc]
            )
            sides.append(made.vectors)
        with services.take(services.turns.evaluations, context.project):
            ranks[encoder.name] = reciprocal_ranks(sides[0], sides[1])
    means = {name: mean_interval(each) for name, each in ranks.items()}
    differences = {
        (source, target): mean_interval(ranks[target] - ranks[source])
        for source, target in permutations(ranks, 2)
    }
    listed = sorted(means.items(), key=lambda item: -item[1].value)
    result = {
        "store": request.store,
        "texts": len(pairs),
        "encoders": [
            {"encoder": name, "mrr": mean.value, "interval": [mean.low, mean.high]}
            for name, mean in listed
        ],
        "pairs": [_describe(*pair, differences[pair]) for pair in combinations(ranks, 2)],
    }
    count = len(pairs)

    def write(session: Session) -> None:
        _remember(session, encoders, request, count, means, differences)

    return JobResult(result, write=write)


def _check(
    services: Services, project: str, request: CompareRequest
) -> tuple[tables.StoreRow | None, list[tables.EncoderRow]]:
    """Return the store and the encoders."""
    if len(set(request.encoders)) < len(request.encoders):
        raise InvalidRequest("`encoders` names one twice. Name different ones.", field="encoders")
    store = None
    with services.db.transaction() as session:
        if request.store is not None:
            store = resources.by_name(
                session, tables.StoreRow, project, request.store, field="store"
            )
        encoders = [
            resources.by_name(session, tables.EncoderRow, project, each, field="encoders")
            for each in request.encoders
        ]
    if store is not None:
        require_text_field(services, store, otherwise=" Or send `inputs`.")
    for encoder in encoders:
        if not embeds_texts(encoder):
            raise InvalidRequest(
                f"The service cannot embed texts with the encoder {encoder.name!r}. Leave it out, "
                "or register it with its model or its URL.",
                field="encoders",
            )
    return store, encoders


def _cut(
    services: Services, texts: Sequence[str], count: int, *, field: str
) -> list[tuple[str, str]]:
    """Return windows and rests. Raises InvalidRequest for too few texts that are long enough."""
    most = services.limits.input_characters
    pairs = cut_windows([each[:most] for each in texts], count)
    if len(pairs) < FEWEST_TEXTS:
        where = "sampled rows" if field == "store" else "texts"
        raise InvalidRequest(
            f"Of {len(texts)} {where}, {len(pairs)} are different and have {MIN_WORDS} words or "
            f"more, separated by spaces. The comparison needs {FEWEST_TEXTS}. Send more or longer "
            "texts as `inputs`, or compare the encoders by judgements: POST /evaluate.",
            field=field,
        )
    return pairs


def _describe(source: str, target: str, difference: IntervalEstimate) -> dict[str, Any]:
    verdict = "better" if difference.low > 0 else "worse" if difference.high < 0 else "undecided"
    return {
        "source": source,
        "target": target,
        "difference": difference.value,
        "interval": [difference.low, difference.high],
        "verdict": verdict,
    }


def _remember(
    session: Session,
    encoders: Sequence[tables.EncoderRow],
    request: CompareRequest,
    texts: int,
    means: Mapping[str, IntervalEstimate],
    differences: Mapping[tuple[str, str], IntervalEstimate],
) -> None:
    """Write each pair's comparison to the row of its target. Raises Conflict if one is gone."""
    ids = sorted(each.id for each in encoders)
    query = select(tables.EncoderRow).where(tables.EncoderRow.id.in_(ids))
    # In the order of ids, and locked: another comparison may write the same rows.
    found = session.scalars(query.order_by(tables.EncoderRow.id).with_for_update()).all()
    if len(found) < len(ids):
        raise Conflict("An encoder was deleted during the comparison. Compare again.")
    rows = {row.name: row for row in found}
    for (source, target), difference in differences.items():
        row = rows[target]
        compared = {
            "mrr": [means[source].value, means[target].value],
            "difference": difference.value,
            "interval": [difference.low, difference.high],
            "texts": texts,
            "store": request.store,
        }
        row.comparisons = {**(row.comparisons or {}), rows[source].id: compared}
