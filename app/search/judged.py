"""Evaluates the options after a change of encoder on judged queries of a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from app.anchors import spaces
from app.context import Services
from app.db import tables
from app.encoders import incoming
from app.errors import InvalidRequest, MissingField, blaming
from app.jobs.progress import Progress
from app.jobs.submission import submit_job
from app.jobs.worker import JobResult
from app.maths.quality.metrics import bootstrap_interval, cosine_blocks
from app.maths.relevance.fuse_weight import (
    WEIGHT_GRID,
    choose_weight,
    native_weight,
    weights_with,
)
from app.maths.relevance.options import (
    DEFAULT_CANDIDATES,
    NATIVE_OPTIONS,
    NEEDED,
    SEARCH_OPTIONS,
    SearchMetrics,
    SearchOption,
    SearchVectors,
    measure_options,
)
from app.maths.relevance.ranking_metrics import MEASURES, Judgements, collect
from app.maths.translators.translator import apply
from app.request_context import RequestContext
from app.search.compare import difference_of
from app.search.scoring import default_weight_of
from app.translate import evaluate as evaluation
from app.translate import fit as translators
from app.translate.maps import ServedMap
from app.types import JobKind

ChosenBy = Literal["judgements", "request", "default"]

#: a query or document: its row, or its id
RowOrId = int | str

#: the field of a request that each kind of vectors of `SearchVectors` comes from
FIELDS: Mapping[str, str] = {
    "old_queries": "old_queries",
    "old_documents": "documents",
    "new_queries": "queries",
    "new_documents": "native_documents",
    "bridged_queries": "queries",
    "translated_documents": "documents",
}


#: multiplications in the time that one query's native scores are ordered
MULTIPLICATIONS_PER_BLOCK = 2**22

#: cosine above which a document is an anchor: float16 rounds to about 1e-6 less than 1
SAME_DIRECTION = 1 - 1e-5


@dataclass(frozen=True)
class JudgementColumns:
    """The judgements of a request, column by column.

    query_ids, document_ids  the ids of the rows; None: judgements name rows
    """

    queries: Sequence[RowOrId]
    documents: Sequence[RowOrId]
    grades: Sequence[float]
    query_ids: Sequence[str] | None = None
    document_ids: Sequence[str] | None = None


@dataclass(frozen=True, eq=False)
class JudgedTask:
    """A checked evaluation of judged queries.

    items       queries (q, d_y) and native_documents (m, d_y) by the target, old_queries (q, d_x)
                and documents (m, d_x) by the source: those that the client sent
    weight      of the new scores in fuse; None: chosen
    candidates  of each search of the store
    """

    request: translators.FitRequest
    items: Mapping[str, Tensor]
    judged: Judgements
    unjudged: int
    weight: float | None
    candidates: int
    source: tables.SpaceRow
    target: tables.SpaceRow

    @property
    def is_small(self) -> bool:
        """Whether the evaluation runs without a job."""
        dim = max(self.source.encoder.dim, self.target.encoder.dim)
        cosines = (4 * len(self.judged) + self.source.anchor_set.size) * self.judged.size
        sorted_scores = len(self.judged) * 2 * self.candidates * len(WEIGHT_GRID)
        natives = set(NATIVE_OPTIONS) - _missing_fields(self.items).keys()
        blocks = len(self.judged) * len(natives)
        return (cosines + sorted_scores) * (
            dim + evaluation.MULTIPLICATIONS_PER_COSINE
        ) + 6 * self.source.anchor_set.size * dim * dim + blocks * MULTIPLICATIONS_PER_BLOCK <= (
            evaluation.REQUEST_MULTIPLICATIONS
        )


def check_judged(
    services: Services,
    project: str,
    request: translators.FitRequest,
    items: Mapping[str, Tensor],
    judgements: JudgementColumns,
    *,
    weight: float | None = None,
    candidates: int = DEFAULT_CANDIDATES,
) -> JudgedTask:
    """Check the request before anything is fitted.

    Raises the not-found errors, AnchorsNotEmbedded, the option and vector errors, MissingField, and
    InvalidRequest.
    """
    source, target = translators.find_pair(services, project, request)
    translators.check_options(request, anchors=source.anchor_set.size)
    dims = {
        "queries": target.encoder.dim,
        "old_queries": source.encoder.dim,
        "documents": source.encoder.dim,
        "native_documents": target.encoder.dim,
    }
    items = {
        field: incoming.checked_vectors(
            vectors, field=field, limits=services.limits, dim=dims[field]
        )
        for field, vectors in items.items()
    }
    queries = _count_rows(items, "queries", "old_queries")
    documents = _count_rows(items, "documents", "native_documents")
    if len(_missing_fields(items)) == len(SEARCH_OPTIONS):
        raise MissingField(
            "The request has no option to measure. Send `documents` and at least one of `queries` "
            "and `old_queries`.",
            field="queries" if queries is None else "documents",
        )
    assert queries is not None
    assert documents is not None
    judged, unjudged = _read_judgements(judgements, queries, documents)
    return JudgedTask(request, items, judged, unjudged, weight, candidates, source, target)


def evaluate_judged(
    services: Services,
    context: RequestContext,
    task: JudgedTask,
    on_progress: Callable[[int, int], object] = lambda *_: None,
) -> dict[str, Any]:
    """Return the evaluation as JSON.

    on_progress  called with the queries that are done, and all

    Runs on the CPU, so that requests and jobs return equal numbers. Raises the errors of
    `translators.fit`, OutOfRange for vectors that cannot be translated, and Overloaded.
    """
    there, back = _fit_both(services, context, task)
    raw = spaces.raw_anchors(services, task.source)
    default, _ = default_weight_of(services, task.source, task.target)
    difference = difference_of(task.source.encoder, task.target.encoder)
    with services.take(services.turns.evaluations, context.project):
        vectors = _search_vectors(task.items, there, back)
        weight = task.weight
        measured = measure_options(
            vectors,
            task.judged,
            weights=weights_with(default) if weight is None else (weight,),
            default_weight=default if weight is None else weight,
            native_weight=native_weight(difference) if weight is None else weight,
            candidates=task.candidates,
            on_progress=lambda done: on_progress(done, len(task.judged)),
        )
        values, fuse = _choose_fusion(measured, weight, default)
        return {
            **_describe_task(task, there, back, raw),
            "results": _describe_options(values),
            "missing": _missing_fields(task.items),
            "fuse": fuse,
            "best": max(values, key=lambda option: float(values[option][:, 0].mean())),
        }


def request_judged(services: Services, context: RequestContext, task: JudgedTask) -> tables.JobRow:
    """Store the items, and queue a job. Raises StorageUnavailable, TooManyJobs, QueueFull."""
    judged = task.judged
    columns = {
        "judged.queries": judged.rows[judged.queries],
        "judged.documents": judged.documents,
        "judged.grades": judged.grades,
    }
    arguments = {
        "request": asdict(task.request),
        "judged": {"weight": task.weight, "candidates": task.candidates},
        "blobs": {"items": services.blobs.put({**task.items, **columns})},
    }
    return submit_job(services, context, JobKind.evaluate, arguments)


def run_any_evaluation(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run a job of `/evaluate`, with judgements or without. Its result is a request's answer."""
    arguments, context = job.arguments, RequestContext.of_job(job)
    if "judged" not in arguments:
        return evaluation.run_evaluation(services, job, progress)
    tensors = services.blobs.get(arguments["blobs"]["items"])
    queries, documents, grades = (
        tensors.pop(f"judged.{name}").tolist() for name in ("queries", "documents", "grades")
    )
    task = check_judged(
        services,
        job.project,
        translators.FitRequest(**arguments["request"]),
        tensors,
        JudgementColumns(queries, documents, grades),
        **arguments["judged"],
    )
    result = evaluate_judged(services, context, task, progress)
    progress(len(task.judged), len(task.judged))
    return JobResult(result)


def _read_judgements(
    columns: JudgementColumns, queries: int, documents: int
) -> tuple[Judgements, int]:
    """Return the judgements, and the number of queries without a relevant document.

    queries, documents  the numbers of vectors

    A repeated judgement counts once.
    """
    query_rows = _rows(columns.queries, columns.query_ids, queries, "query", "queries")
    document_rows = _rows(
        columns.documents, columns.document_ids, documents, "document", "documents"
    )
    grades = torch.tensor(columns.grades, dtype=torch.float64)
    first = _first_of_each(query_rows * documents + document_rows, grades)
    judged = collect(query_rows[first], document_rows[first], grades[first], size=documents)
    if not len(judged):
        raise InvalidRequest(
            "No judgement has a grade above 0, so every ranking is as good as another. Send at "
            "least one document that is relevant to a query.",
            field="judgements",
        )
    return judged, queries - len(judged)


def _rows(
    named: Sequence[RowOrId], ids: Sequence[str] | None, count: int, what: str, vectors: str
) -> Tensor:
    """Return the row that each judgement names."""
    if ids is None:
        wrong = [
            place
            for place, row in enumerate(named)
            if not (isinstance(row, int) and 0 <= row < count)
        ]
        if wrong:
            raise InvalidRequest(
                f"{len(wrong)} judgements have a `{what}` that is no row of the {vectors}: a "
                f"whole number from 0 to {count - 1}. Correct them, or send `{what}_ids`.",
                field="judgements",
                rows=wrong,
            )
        return torch.tensor(named, dtype=torch.int64)
    places: dict[RowOrId, int] = {each: row for row, each in enumerate(ids)}
    if len(places) < len(ids) or len(ids) != count:
        raise InvalidRequest(
            f"`{what}_ids` has {len(ids)} ids, {len(places)} of them different, for {count} "
            f"{vectors}. Send a different id for each vector.",
            field=f"{what}_ids",
        )
    wrong = [place for place, each in enumerate(named) if each not in places]
    if wrong:
        raise InvalidRequest(
            f"{len(wrong)} judgements have a `{what}` that is not among `{what}_ids`. Correct "
            "or remove them.",
            field="judgements",
            rows=wrong,
        )
    return torch.tensor([places[each] for each in named], dtype=torch.int64)


def _first_of_each(pairs: Tensor, grades: Tensor) -> Tensor:
    """The rows of the first judgement of each pair. Raises InvalidRequest for unequal grades."""
    order = pairs.argsort(stable=True)
    ordered = pairs[order]
    repeated = torch.cat([torch.zeros(1, dtype=torch.bool), ordered[1:] == ordered[:-1]])
    unequal = repeated.clone()
    unequal[1:] &= grades[order][1:] != grades[order][:-1]
    if unequal.any():
        rows = sorted(order[unequal].tolist())
        raise InvalidRequest(
            f"{len(rows)} judgements repeat a query and document with another grade. Send one "
            "grade for each pair.",
            field="judgements",
            rows=rows,
        )
    return order[~repeated]


def _fit_both(
    services: Services, context: RequestContext, task: JudgedTask
) -> tuple[ServedMap | None, ServedMap | None]:
    """Return the translator of the documents and the one of the queries, if they are needed."""
    if not {"documents", "queries"} <= set(task.items):
        return None, None
    request = task.request
    assert request.source is not None
    reverse = replace(request, source=request.target, target=request.source)
    return (
        translators.fit(services, context, task.source, task.target, request),
        translators.fit(services, context, task.target, task.source, reverse),
    )


def _describe_task(
    task: JudgedTask, there: ServedMap | None, back: ServedMap | None, raw: Tensor
) -> dict[str, Any]:
    """The members of the answer about the request and its translators."""
    request, documents = task.request, task.items.get("documents")
    return {
        "source": request.source,
        "target": request.target,
        "anchor_set": request.anchor_set,
        "translator": None if there is None else there.id,
        "bridge": None if back is None else back.id,
        "method": None if there is None else there.method,
        "options": None if there is None else dict(there.options),
        "queries": len(task.judged),
        "unjudged": task.unjudged,
        "documents": task.judged.size,
        "anchors": len(raw),
        "anchor_documents": 0 if documents is None else _count_anchors(documents, raw),
        "candidates": task.candidates,
    }


def _count_rows(checked: Mapping[str, Tensor], first: str, second: str) -> int | None:
    """Return the number of rows of two fields. Raises InvalidRequest for unequal numbers."""
    counts = [len(checked[field]) for field in (first, second) if field in checked]
    if len({*counts}) > 1:
        raise InvalidRequest(
            f"There are {counts[0]} `{first}` and {counts[1]} `{second}`. Send as many of both: "
            "row i is the same item.",
            field=second,
        )
    return counts[0] if counts else None


def _missing_fields(items: Mapping[str, Tensor]) -> dict[SearchOption, list[str]]:
    """The fields that options need and the request lacks; options without any are left out."""
    absent = set(FIELDS.values()) - set(items)
    missing = {
        option: sorted({FIELDS[vectors] for vectors in needed} & absent)
        for option, needed in NEEDED.items()
    }
    return {option: fields for option, fields in missing.items() if fields}


def _search_vectors(
    items: Mapping[str, Tensor], there: ServedMap | None, back: ServedMap | None
) -> SearchVectors:
    """Translate the documents, and the queries back."""

    def translate(fitted: ServedMap | None, field: str) -> Tensor | None:
        if fitted is None:
            return None
        with blaming(field):
            return apply(fitted.translator, items[field]).vectors

    return SearchVectors(
        old_queries=items.get("old_queries"),
        old_documents=items.get("documents"),
        new_queries=items.get("queries"),
        new_documents=items.get("native_documents"),
        bridged_queries=translate(back, "queries"),
        translated_documents=translate(there, "documents"),
    )


def _choose_fusion(
    measured: SearchMetrics, given: float | None, default: float
) -> tuple[dict[SearchOption, Float64[Tensor, "n 3"]], dict[str, Any] | None]:
    """The measures of each query by each option, and how fuse was weighted.

    A chosen weight is measured on queries that it was not chosen on.
    """
    values = dict(measured.options)
    fuse = None
    if measured.fused:
        tables_by_weight = torch.stack(measured.fused, dim=1)
        by_weight = tables_by_weight[:, :, 0]
        weights = measured.weights
        choice = choose_weight(by_weight, usual=weights.index(default)) if given is None else None
        chosen_by: ChosenBy = "request"
        if choice is not None:
            chosen_by, (place, held_out) = "judgements", choice
        else:
            place = weights.index(default if given is None else given)
            held_out = torch.full((len(by_weight),), place)
            chosen_by = "default" if given is None else "request"
        values["fuse"] = tables_by_weight[torch.arange(len(by_weight)), held_out]
        means = by_weight.mean(dim=0).tolist()
        fuse = {
            "weight": weights[place],
            "weight_chosen_by": chosen_by,
            "default_weight": default,
            "by_weight": [
                {"weight": weight, "ndcg_10": mean}
                for weight, mean in zip(weights, means, strict=True)
            ],
        }
    return {option: values[option] for option in SEARCH_OPTIONS if option in values}, fuse


def _describe_options(values: Mapping[SearchOption, Tensor]) -> dict[str, Any]:
    """The means of each option, and its differences from keep, query by query."""
    keep = values.get("keep")
    described: dict[str, Any] = {}
    for option, table in values.items():
        change = None if keep is None or option == "keep" else table - keep
        described[option] = {
            **dict(zip(MEASURES, table.mean(dim=0).tolist(), strict=True)),
            "intervals": _intervals(table),
            "over_keep": None
            if change is None
            else {
                **dict(zip(MEASURES, change.mean(dim=0).tolist(), strict=True)),
                "intervals": _intervals(change),
            },
        }
    return described


def _intervals(table: Float64[Tensor, "n 3"]) -> dict[str, Sequence[float]]:
    """The 95 % bootstrap interval of the mean of each measure over the queries."""
    low, high = bootstrap_interval(table)
    return {name: [float(low[i]), float(high[i])] for i, name in enumerate(MEASURES)}


def _count_anchors(documents: Tensor, anchors: Tensor) -> int:
    """The number of documents with the direction of an anchor: a store may have scaled them."""
    known = torch.nn.functional.normalize(anchors.double(), dim=1)
    directions = torch.nn.functional.normalize(documents.double(), dim=1)
    return sum(
        int((block.amax(dim=1) > SAME_DIRECTION).sum())
        for _, block in cosine_blocks(directions, known)
    )
