"""Measures of a ranking by judgements: nDCG@10, recall@100 and the reciprocal rank, as trec_eval
defines them.

A document without a judgement has grade 0. The gain of a document is its grade, and the discount of
rank r is 1 / log2(r + 1), as in trec_eval's `ndcg_cut` (Järvelin and Kekäläinen 2002 discount less,
and Burges et al. 2005 use the gain 2^grade - 1).

What people judged: the grades of documents for queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

#: Ranks that nDCG reads, and ranks that recall and the reciprocal rank read.
NDCG_DEPTH = 10
RECALL_DEPTH = 100

MEASURES = ("ndcg_10", "recall_100", "mrr")


@dataclass(frozen=True, eq=False)
class RankingMetrics:
    """The measures of one ranking for each of n queries, each (n,), from 0 to 1.

    ndcg    DCG@10 over that of the best ranking, DCG = sum over ranks r of grade / log2(r + 1)
    recall  share of the query's relevant documents that are among the first 100
    reciprocal_rank  1 / rank of the first relevant document among the first 100, or 0
    """

    ndcg: Float64[Tensor, " n"]
    recall: Float64[Tensor, " n"]
    reciprocal_rank: Float64[Tensor, " n"]

    @property
    def table(self) -> Float64[Tensor, "n 3"]:
        """One column for each of MEASURES."""
        return torch.stack([self.ndcg, self.recall, self.reciprocal_rank], dim=1)


@dataclass(frozen=True, eq=False)
class IdealRanking:
    """What the best ranking of each of n queries has: its DCG@10, and the relevant documents."""

    gain: Float64[Tensor, " n"]
    relevant: Float64[Tensor, " n"]


def ideal_ranking(judged: Judgements) -> IdealRanking:
    """The best ranking of each query: its documents by descending grade."""
    n = len(judged)
    order = judged.grades.argsort(descending=True, stable=True)
    order = order[judged.queries[order].argsort(stable=True)]
    queries, grades = judged.queries[order], judged.grades[order]
    first = torch.searchsorted(queries, torch.arange(n))
    ranks = torch.arange(len(queries)) - first[queries]
    gains = torch.where(ranks < NDCG_DEPTH, grades / torch.log2(ranks.double() + 2), 0.0)
    return IdealRanking(
        torch.zeros(n, dtype=torch.float64).index_add_(0, queries, gains),
        torch.zeros(n, dtype=torch.float64).index_add_(0, queries, (grades > 0).double()),
    )


def measure_ranking(
    ranking: Int64[Tensor, "c r"], judged: Judgements, ideal: IdealRanking, start: int = 0
) -> RankingMetrics:
    """The measures of rankings of c queries, from place `start` of the judged queries on.

    ranking  (c, r) rows of documents, best first, without repeats; ranks beyond 100 are not read.
             A negative row stands for no document
    """
    stop = start + len(ranking)
    ranking = ranking[:, :RECALL_DEPTH].cpu()
    grades = judged.grades_of(ranking.clamp(min=0), start).masked_fill_(ranking < 0, 0.0)
    discount = torch.log2(torch.arange(min(NDCG_DEPTH, ranking.shape[1])).double() + 2)
    relevant = grades > 0
    first = relevant.int().argmax(dim=1)
    return RankingMetrics(
        ndcg=(grades[:, :NDCG_DEPTH] / discount).sum(dim=1) / ideal.gain[start:stop],
        recall=relevant.sum(dim=1) / ideal.relevant[start:stop],
        reciprocal_rank=relevant.any(dim=1) / (first + 1.0).double(),
    )


def join_metrics(parts: list[RankingMetrics]) -> RankingMetrics:
    """The measures of consecutive blocks of queries, as one."""
    return RankingMetrics(
        torch.cat([part.ndcg for part in parts]),
        torch.cat([part.recall for part in parts]),
        torch.cat([part.reciprocal_rank for part in parts]),
    )


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
