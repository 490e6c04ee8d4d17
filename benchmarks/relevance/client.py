"""A search over HTTP: the service's answers, and a small store that finds candidates."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import torch

from app.maths.relevance.options import DEFAULT_CANDIDATES
from app.maths.relevance.ranking_metrics import collect, measure_ranking
from benchmarks.relevance.collection import JudgedCollection
from benchmarks.service import JSON, Connection, Matrix

#: rows of documents, as a store finds them
Rows = npt.NDArray[np.int64]

#: queries of one /rescore: at most 200 candidates each stay below the limit of a request
RESCORED_AT_ONCE = 75


@dataclass(frozen=True)
class Direction:
    """A pair of encoders with the anchor set between them, as a request names it."""

    source: str
    target: str
    anchor_set: str
    method: str

    @property
    def fields(self) -> dict[str, str]:
        """The request's fields."""
        return vars(self)

    @property
    def turned(self) -> Direction:
        """The other way."""
        return Direction(self.target, self.source, self.anchor_set, self.method)


def packed(vectors: Matrix) -> dict[str, Any]:
    """Vectors in a JSON body, in half the bytes of float32; the collections have no more digits."""
    half = np.ascontiguousarray(vectors, dtype="<f2")
    text = base64.b64encode(half.tobytes()).decode()
    return {"dtype": "float16", "shape": half.shape, "base64": text}


def post(connection: Connection, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer."""
    answer: dict[str, Any] = orjson.loads(connection.ask(path, orjson.dumps(body), JSON))
    return answer


def evaluate(
    connection: Connection,
    data: JudgedCollection,
    pair: Direction,
    queries: Sequence[int] | None = None,
    weight: float | None = None,
) -> dict[str, Any]:
    """POST /evaluate with the judgements of these queries (None: all) by both encoders."""
    kept = range(len(data.queries[pair.source])) if queries is None else queries
    rows = {query: row for row, query in enumerate(kept)}
    body = {
        **pair.fields,
        "queries": packed(data.queries[pair.target][list(kept)]),
        "old_queries": packed(data.queries[pair.source][list(kept)]),
        "documents": packed(data.documents[pair.source]),
        "native_documents": packed(data.documents[pair.target]),
        "judgements": [
            {"query": rows[query], "document": document, "grade": grade}
            for query, document, grade in data.relevance
            if query in rows
        ],
        "weight": weight,
    }
    return finished(connection, post(connection, "/evaluate", body))


def finished(connection: Connection, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, or the result of the job that makes it."""
    if "state" not in answer:
        return answer
    while answer["state"] not in ("succeeded", "failed", "cancelled"):
        answer = orjson.loads(connection.ask(f"/jobs/{answer['id']}", b"", JSON, verb="GET"))
    result: dict[str, Any] = answer["result"]
    return result


def translate(connection: Connection, pair: Direction, vectors: Matrix) -> Matrix:
    """POST /translate."""
    body = {**pair.fields, "vectors": packed(vectors), "encoding": "base64"}
    answer = post(connection, "/translate", body)["vectors"]
    numbers = np.frombuffer(base64.b64decode(answer["base64"]), "<f4")
    found: Matrix = numbers.reshape(answer["shape"])
    return found


def rescore(
    connection: Connection,
    data: JudgedCollection,
    pair: Direction,
    candidates: Sequence[Rows],
    **fuse: Any,
) -> tuple[list[list[int]], float | None]:
    """POST /rescore: the rows of the documents in their new order, and the weight of fuse."""
    results: list[list[int]] = []
    weight = None
    for start in range(0, len(candidates), RESCORED_AT_ONCE):
        chosen = slice(start, start + RESCORED_AT_ONCE)
        body = {
            **pair.fields,
            "queries": packed(data.queries[pair.target][chosen]),
            "candidates": [
                {"ids": rows.tolist(), "vectors": packed(data.documents[pair.source][rows])}
                for rows in candidates[chosen]
            ],
            **fuse,
        }
        if fuse:
            body["old_queries"] = packed(data.queries[pair.source][chosen])
        answer = post(connection, "/rescore", body)
        results += [each["ids"] for each in answer["results"]]
        weight = answer["weight"]
    return results, weight


def search(queries: Matrix, documents: Matrix, count: int = DEFAULT_CANDIDATES) -> Rows:
    """The rows (q, count) that a store finds by cosine."""
    lengths = np.linalg.norm(documents, axis=1)
    order = np.argsort(-(queries @ documents.T) / lengths, axis=1, kind="stable")
    return order.astype(np.int64)[:, :count]


def mean_ndcg(data: JudgedCollection, rankings: Sequence[Sequence[int]]) -> float:
    """NDCG@10 of a ranking of each query, over the judged queries."""
    table = torch.tensor(data.relevance)
    judged = collect(table[:, 0], table[:, 1], table[:, 2].double(), size=data.size)
    first = [list(ranking[:10]) for ranking in rankings]
    ranking = torch.tensor([row + [-1] * (10 - len(row)) for row in first])[judged.rows]
    return float(measure_ranking(ranking, judged)[:, 0].mean())
