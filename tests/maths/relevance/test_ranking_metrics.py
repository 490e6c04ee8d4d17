"""nDCG@10 and the reciprocal rank are those of trec_eval and of their definitions."""

from __future__ import annotations

import pytest
import pytrec_eval
import torch
from torch import Tensor

from app.maths.relevance.ranking_metrics import Judgements, collect, measure_ranking

QUERIES, DOCUMENTS = 40, 150


def judgements(rows: Tensor, size: int = DOCUMENTS) -> Judgements:
    return collect(rows[:, 0], rows[:, 1], rows[:, 2].double(), size=size)


def measured(ranking: Tensor, judged: Judgements) -> Tensor:
    return measure_ranking(ranking[judged.rows], judged)


def test_the_measures_are_those_of_trec_eval():
    generator = torch.Generator().manual_seed(7)
    pairs = torch.randperm(QUERIES * DOCUMENTS, generator=generator)[:600]
    grades = torch.randint(0, 5, (600,), generator=generator)
    rows = torch.stack([pairs // DOCUMENTS, pairs % DOCUMENTS, grades], dim=1)
    ranking = torch.rand(QUERIES, DOCUMENTS, generator=generator).argsort(dim=1)[:, :100]
    judged = judgements(rows)
    found = measured(ranking, judged)
    qrels: dict[str, dict[str, int]] = {}
    for query, document, grade in rows.tolist():
        qrels.setdefault(str(query), {})[str(document)] = grade
    run = {
        query: {str(d): -float(rank) for rank, d in enumerate(ranking[int(query)].tolist())}
        for query in qrels
    }
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recip_rank"}).evaluate(run)
    for place, query in enumerate(judged.rows.tolist()):
        own = theirs[str(query)]
        assert found[place].tolist() == pytest.approx([own["ndcg_cut_10"], own["recip_rank"]])


def test_a_query_without_a_relevant_document_is_left_out():
    rows = torch.tensor([[0, 1, 0], [2, 0, 3], [2, 1, 0], [3, 1, 1]])
    judged = judgements(rows, size=2)
    assert judged.rows.tolist() == [2, 3]
    assert judged.queries.tolist() == [0, 0, 1]
    assert judged.documents.tolist() == [0, 1, 1]


def test_a_missing_document_is_not_relevant():
    judged = judgements(torch.tensor([[0, 0, 1]]), size=3)
    assert measured(torch.tensor([[2, -1, -1]]), judged).tolist() == [[0.0, 0.0]]
