"""Reads the judgements of a request: pairs of query and document, by rows or by ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from app.errors import InvalidRequest
from app.maths.relevance.ranking_metrics import Judgements, collect

#: a query or document: its row, or its id
RowOrId = int | str


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


def read_judgements(
    columns: JudgementColumns, queries: int, documents: int
) -> tuple[Judgements, int]:
    """Return the judgements, and the number of queries without a relevant document.

    queries, documents  the numbers of vectors

    A repeated judgement counts once. Raises InvalidRequest.
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
    """Return the row that each judgement names. Raises InvalidRequest."""
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
