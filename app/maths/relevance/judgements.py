"""What people judged: the grades of documents for queries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Judgements:
    """Grades of the queries that have a relevant document, on the CPU. A document without a grade
    has grade 0.

    rows       (n,) rows of these queries, ascending
    queries    (j,) the place of each judgement's query in `rows`, ascending
    documents  (j,) its document's row, ascending within a query
    grades     (j,) its grade, >= 0; above 0: relevant
    size       m, the number of documents
    """

    rows: Int64[Tensor, " n"]
    queries: Int64[Tensor, " j"]
    documents: Int64[Tensor, " j"]
    grades: Float64[Tensor, " j"]
    size: int

    def __len__(self) -> int:
        """The number of queries, n."""
        return len(self.rows)

    def grades_of(self, ranking: Int64[Tensor, "c r"], start: int) -> Float64[Tensor, "c r"]:
        """The grades of documents that were ranked for the queries from place `start` on."""
        keys = (torch.arange(start, start + len(ranking)) * self.size)[:, None] + ranking
        judged = self.queries * self.size + self.documents
        places = torch.searchsorted(judged, keys).clamp_(max=len(judged) - 1)
        return torch.where(judged[places] == keys, self.grades[places], 0.0)


def collect(
    queries: Int64[Tensor, " j"],
    documents: Int64[Tensor, " j"],
    grades: Float64[Tensor, " j"],
    *,
    size: int,
) -> Judgements:
    """Judgements from rows of queries and documents, in any order, each pair at most once.

    Leaves out queries without a relevant document: no ranking can be better than another for them.
    """
    queries, documents, grades = queries.cpu(), documents.cpu(), grades.cpu()
    order = (queries * size + documents).argsort()
    queries, documents, grades = queries[order], documents[order], grades[order]
    rows = torch.unique(queries[grades > 0])
    kept = torch.isin(queries, rows)
    return Judgements(
        rows, torch.searchsorted(rows, queries[kept]), documents[kept], grades[kept], size
    )
