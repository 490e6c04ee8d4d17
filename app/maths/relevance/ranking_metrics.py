"""Measures of a ranking by judgements: nDCG@10 and the reciprocal rank, as trec_eval defines them.

A document without a judgement has grade 0. The gain of a document is its grade, and the discount of
rank r is 1 / log2(r + 1), as in trec_eval's `ndcg_cut` (Järvelin and Kekäläinen 2002 discount less,
and Burges et al. 2005 use the gain 2^grade - 1).

What people judged: the grades of documents for queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

#: Ranks that nDCG reads, and ranks that the reciprocal rank reads.
NDCG_DEPTH = 10
DEPTH = 100

MEASURES = ("ndcg_10", "mrr")


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

    @cached_property
    def best_gain(self) -> Float64[Tensor, " n"]:
        """DCG@10 of the best ranking of each query: its documents by descending grade."""
        order = self.grades.argsort(descending=True, stable=True)
        order = order[self.queries[order].argsort(stable=True)]
        queries, grades = self.queries[order], self.grades[order]
        ranks = (
            torch.arange(len(queries))
            - torch.searchsorted(queries, torch.arange(len(self)))[queries]
        )
        gains = torch.where(ranks < NDCG_DEPTH, grades / torch.log2(ranks.double() + 2), 0.0)
        return torch.zeros(len(self), dtype=torch.float64).index_add_(0, queries, gains)

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


def measure_ranking(
    ranking: Int64[Tensor, "c r"], judged: Judgements, start: int = 0
) -> Float64[Tensor, "c 2"]:
    """The MEASURES of rankings of c queries, from place `start` of the judged queries on; 0 to 1.

    ranking  (c, r) rows of documents, best first, without repeats; ranks beyond 100 are not read.
             A negative row stands for no document
    ndcg_10  DCG@10 over that of the best ranking, DCG = sum over ranks r of grade / log2(r + 1)
    mrr      1 / rank of the first relevant document among the first 100, or 0
    """
    stop = start + len(ranking)
    ranking = ranking[:, :DEPTH].cpu()
    grades = judged.grades_of(ranking.clamp(min=0), start).masked_fill_(ranking < 0, 0.0)
    discount = torch.log2(torch.arange(min(NDCG_DEPTH, ranking.shape[1])).double() + 2)
    relevant = grades > 0
    first = relevant.int().argmax(dim=1)
    columns = (
        (grades[:, :NDCG_DEPTH] / discount).sum(dim=1) / judged.best_gain[start:stop],
        relevant.any(dim=1) / (first + 1.0).double(),
    )
    return torch.stack(columns, dim=1)
