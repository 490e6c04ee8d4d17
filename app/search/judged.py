"""Evaluates the options after a change of encoder on judged queries of a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from app.context import RequestContext, Services
from app.db import tables
from app.encoders import incoming
from app.errors import InvalidRequest, MissingField, blaming
from app.maths.quality.metrics import bootstrap_interval
from app.maths.relevance.fuse_weight import WEIGHT_GRID, choose_weight, native_weight, weights_with
from app.maths.relevance.options import (
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
from app.search.decide_schemas import EvaluateRequest
from app.search.weights import default_weight_of, difference_of
from app.translate import evaluate as evaluation
from app.translate import fit as translators
from app.translate.maps import FitRequest, ServedMap

#: the field of a request that each kind of vectors of `SearchVectors` comes from
FIELDS: Mapping[str, str] = {
    "old_queries": "old_queries",
    "old_documents": "documents",
    "new_queries": "queries",
    "new_documents": "native_documents",
    "bridged_queries": "queries",
    "translated_documents": "documents",
}

#: the fields of vectors
ITEMS = ("queries", "old_queries", "documents", "native_documents")

#: multiplications in the time that one query's native scores are ordered
MULTIPLICATIONS_PER_BLOCK = 2**22


@dataclass(frozen=True, eq=False)
class JudgedTask:
    """A checked evaluation of judged queries.

    items       queries (q, d_y) and native_documents (m, d_y) by the target, old_queries (q, d_x)
                and documents (m, d_x) by the source: those that the client sent
    weight      of the new scores in fuse; None: chosen
    candidates  of each search of the store
    """

    request: FitRequest
    items: Mapping[str, Tensor]
    judged: Judgements
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

    @property
    def steps(self) -> int:
        """The number of queries to rank."""
        return len(self.judged)

    @property
    def arguments(self) -> dict[str, Any]:
        """What a job of the evaluation needs beside its request and tensors."""
        return {"judged": {"weight": self.weight, "candidates": self.candidates}}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What such a job reads."""
        judged = self.judged
        columns = {
            "queries": judged.rows[judged.queries],
            "documents": judged.documents,
            "grades": judged.grades,
        }
        return {**self.items, **{f"judged.{name}": each for name, each in columns.items()}}

    def measure(
        self,
        services: Services,
        context: RequestContext,
        on_progress: Callable[[int, int], object] = lambda *_: None,
    ) -> dict[str, Any]:
        """Return the evaluation as JSON.

        on_progress  called with the steps that are done, and all

        Runs on the CPU, so that requests and jobs return equal numbers. Raises the errors of
        `translators.fit`, OutOfRange for vectors that cannot be translated, and Overloaded.
        """
        there, back = _fit_both(services, context, self)
        default = default_weight_of(services, self.source, self.target)
        difference = difference_of(self.source.encoder, self.target.encoder)
        with services.take(services.turns.evaluations, context.project):
            vectors = _search_vectors(self.items, there, back)
            weight = self.weight
            measured = measure_options(
                vectors,
                self.judged,
                weights=weights_with(default) if weight is None else (weight,),
                default_weight=default if weight is None else weight,
                native_weight=native_weight(difference) if weight is None else weight,
                candidates=self.candidates,
                on_progress=lambda done: on_progress(done, self.steps),
            )
            values, fuse = _choose_fusion(measured, weight, default)
            return {
                "source": self.request.source,
                "target": self.request.target,
                "anchor_set": self.request.anchor_set,
                "translator": there and there.id,
                "bridge": back and back.id,
                "method": there and there.method,
                "options": there and dict(there.options),
                "queries": self.steps,
                "documents": self.judged.size,
                "candidates": self.candidates,
                "results": _describe_options(values),
                "missing": _missing_fields(self.items),
                "fuse": fuse,
                "best": max(values, key=lambda option: float(values[option][:, 0].mean())),
            }


def check_judged(services: Services, project: str, body: EvaluateRequest) -> JudgedTask:
    """Check a request with judgements before anything is fitted.

    Raises the not-found errors, AnchorsNotEmbedded, the option and vector errors, MissingField, and
    InvalidRequest.
    """
    request = body.translator_request()
    sent = {name: getattr(body, name) for name in ITEMS}
    sent = {name: rows for name, rows in sent.items() if rows is not None}
    source, target, items, counts = _check_items(services, project, request, sent)
    judged = _read_judgements(body, *counts)
    return JudgedTask(request, items, judged, body.weight, body.candidates, source, target)


def judged_of_job(
    services: Services,
    project: str,
    request: FitRequest,
    tensors: dict[str, Tensor],
    *,
    weight: float | None,
    candidates: int,
) -> JudgedTask:
    """Return the task of a job, from its arguments and tensors. Raises as `check_judged`."""
    columns = [tensors.pop(f"judged.{name}") for name in ("queries", "documents", "grades")]
    source, target, items, counts = _check_items(services, project, request, tensors)
    judged = collect(*columns, size=counts[1])
    return JudgedTask(request, items, judged, weight, candidates, source, target)


def _check_items(
    services: Services,
    project: str,
    request: FitRequest,
    items: Mapping[str, Tensor],
) -> tuple[tables.SpaceRow, tables.SpaceRow, dict[str, Tensor], tuple[int, int]]:
    """Return both spaces, the checked items, and the numbers of queries and of documents."""
    source, target = translators.find_pair(services, project, request)
    translators.check_options(request, anchors=source.anchor_set.size)
    checked = {
        field: incoming.checked_vectors(
            vectors,
            field=field,
            limits=services.limits,
            dim=(source if field in ("old_queries", "documents") else target).encoder.dim,
        )
        for field, vectors in items.items()
    }
    queries = _count_rows(checked, "queries", "old_queries")
    documents = _count_rows(checked, "documents", "native_documents")
    if len(_missing_fields(checked)) == len(SEARCH_OPTIONS):
        raise MissingField(
            "The request has no option to measure. Send `documents` and at least one of `queries` "
            "and `old_queries`.",
            field="queries" if queries is None else "documents",
        )
    assert queries is not None
    assert documents is not None
    return source, target, checked, (queries, documents)


def _read_judgements(body: EvaluateRequest, queries: int, documents: int) -> Judgements:
    """Return the judgements for these numbers of vectors. A repeated judgement counts once."""
    each = body.judgements or []
    query_rows = _rows([one.query for one in each], queries, "query", "queries")
    document_rows = _rows([one.document for one in each], documents, "document", "documents")
    grades = torch.tensor([one.grade for one in each], dtype=torch.float64)
    first = _first_of_each(query_rows * documents + document_rows, grades)
    judged = collect(query_rows[first], document_rows[first], grades[first], size=documents)
    if not len(judged):
        raise InvalidRequest(
            "No judgement has a grade above 0, so every ranking is as good as another. Send at "
            "least one document that is relevant to a query.",
            field="judgements",
        )
    return judged


def _rows(named: Sequence[int], count: int, what: str, vectors: str) -> Tensor:
    """Return the row that each judgement names. Raises InvalidRequest for a row beyond the last."""
    rows = torch.tensor(named, dtype=torch.int64)
    if wrong := (rows >= count).nonzero().flatten().tolist():
        raise InvalidRequest(
            f"{len(wrong)} judgements have a `{what}` that is no row of the {vectors}: a whole "
            f"number from 0 to {count - 1}. Correct them.",
            field="judgements",
            rows=wrong,
        )
    return rows


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
) -> tuple[dict[SearchOption, Float64[Tensor, "n 2"]], dict[str, Any] | None]:
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
        chosen_by = "request"
        if choice is not None:
            chosen_by, (place, held_out) = "judgements", choice
        else:
            place = weights.index(default if given is None else given)
            held_out = torch.full((len(by_weight),), place)
            chosen_by = "default" if given is None else "request"
        values["fuse"] = tables_by_weight[torch.arange(len(by_weight)), held_out]
        fuse = {
            "weight": weights[place],
            "weight_chosen_by": chosen_by,
            "default_weight": default,
        }
    return {option: values[option] for option in SEARCH_OPTIONS if option in values}, fuse


def _describe_options(values: Mapping[SearchOption, Tensor]) -> dict[str, Any]:
    """The means of each option, and its differences from keep, query by query."""
    keep = values.get("keep")
    return {
        option: {
            **_means(table),
            "over_keep": None if keep is None or option == "keep" else _means(table - keep),
        }
        for option, table in values.items()
    }


def _means(table: Float64[Tensor, "n 2"]) -> dict[str, Any]:
    """The mean of each measure over the queries, with its 95 % bootstrap interval."""
    low, high = (each.tolist() for each in bootstrap_interval(table))
    intervals = {name: [low[i], high[i]] for i, name in enumerate(MEASURES)}
    return {**dict(zip(MEASURES, table.mean(dim=0).tolist(), strict=True)), "intervals": intervals}
