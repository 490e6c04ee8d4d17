"""Searches of a store whose rows have native vectors of the new encoder in part."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from starlette.testclient import TestClient

from app.main import create_app
from app.services.stores.connections import open_row
from app.settings import Settings
from app.storage import tables
from app.storage.queries import resources
from app.storage.queries import stores as store_queries
from app.types import ReindexingState
from benchmarks.relevance.cells import anchor_rows
from benchmarks.relevance.client import mean_ndcg
from benchmarks.relevance.collection import JudgedCollection
from benchmarks.scaling.data import Matrix
from benchmarks.store_search import filling
from benchmarks.store_search.before import PAIRS, ndcg, search_all, unit

#: shares of the rows that have a native vector
SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)

#: rows of one write
WRITTEN_ROWS = 200


def measure(data: JudgedCollection, url: str, anchors: int, draws: int) -> dict[str, Any]:
    """nDCG@10 of each pair and share, the mean of the draws."""
    cells = []
    for source, target in PAIRS:
        rows = [measure_draw(data, url, (source, target), anchors, draw) for draw in range(draws)]
        cells += [
            {
                "source": source,
                "target": target,
                "share": share,
                "search": float(np.mean([row[share]["search"] for row in rows])),
                "raw merge": float(np.mean([row[share]["raw merge"] for row in rows])),
            }
            for share in SHARES
        ]
    return {"anchors": anchors, "draws": draws, "cells": cells}


def measure_draw(
    data: JudgedCollection, url: str, pair: tuple[str, str], anchors: int, draw: int
) -> dict[float, dict[str, float]]:
    """nDCG@10 of each share."""
    source, target = pair
    # The connector remembers a reindexing that a killed run left, by the table's name.
    table = f"half_{os.getpid()}_{source}_{target}_{draw}"
    definition = filling.fill_pgvector(url, table, data.documents[source])
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(data_dir=Path(folder), stores={"main": url}))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            chosen = anchor_rows(data, anchors, draw)
            for name, vectors in data.documents.items():
                post(client, "/encoders", {"name": name, "dim": vectors.shape[1]})
            embeddings = {name: vectors[chosen] for name, vectors in data.documents.items()}
            post(client, "/anchor-sets", {"name": "draw", "embeddings": embeddings})
            store = {"name": "half", "address": "main", "encoder": source, **definition}
            post(client, "/stores", store)
            return shares(client, data, pair, draw)


def shares(
    client: TestClient, data: JudgedCollection, pair: tuple[str, str], draw: int
) -> dict[float, dict[str, float]]:
    """Write native vectors of more and more rows, at random, and search after each share."""
    target = pair[1]
    services = client.app.state.services  # type: ignore[attr-defined]
    with services.db.transaction() as session:
        row = store_queries.store(session, "default", "half")
        anchor_set = resources.by_name(session, tables.AnchorSetRow, "default", "draw")
        encoder = resources.by_name(session, tables.EncoderRow, "default", target)
        moving = tables.ReindexingRow(
            store_id=row.id,
            target_id=encoder.id,
            anchor_set_id=anchor_set.id,
            state=ReindexingState.running,
            plan={"method": "graded", "options": {}},
            maps="0" * 64,
        )
        session.add(moving)
        session.flush()
        tag = moving.id[:8]
    beside = open_row(services, row).beside(tag, encoder.dim)
    beside.prepare()
    order = np.random.default_rng(draw).permutation(data.size)
    bridged = translated(client, data, pair)
    found, written = {}, 0
    for share in SHARES:
        upto = round(share * data.size)
        for start in range(written, upto, WRITTEN_ROWS):
            ids = order[start : min(start + WRITTEN_ROWS, upto)]
            beside.write(ids.tolist(), unit(data.documents[target][ids]))
        written = upto
        results = search_all(
            partial(post, client), "/stores/half/search", {"target": target}, data.queries[target]
        )
        found[share] = {
            "search": ndcg(data, results),
            "raw merge": merged(data, pair, bridged, order[:upto].tolist()),
        }
    beside.abandon()
    with services.db.transaction() as session:
        session.delete(session.get_one(tables.ReindexingRow, moving.id))
    return found


def merged(data: JudgedCollection, pair: tuple[str, str], bridged: Matrix, new: list[int]) -> float:
    """nDCG@10 of cosines of both spaces in one order."""
    source, target = pair
    scores = unit(bridged) @ unit(data.documents[source]).T
    native = unit(data.queries[target]) @ unit(data.documents[target]).T
    scores[:, new] = native[:, new]
    return mean_ndcg(data, np.argsort(-scores, axis=1, kind="stable")[:, :10].tolist())


def translated(client: TestClient, data: JudgedCollection, pair: tuple[str, str]) -> Matrix:
    """The new queries in the old space."""
    body = {"source": pair[1], "target": pair[0], "anchor_set": "draw", "method": "graded"}
    answer = post(client, "/translate", {**body, "vectors": data.queries[pair[1]]})
    return np.array(answer["vectors"], dtype=np.float32)


def post(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    """The answer, which must be a success."""
    answer = client.post(
        path,
        content=orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY),
        headers={"Content-Type": "application/json"},
    )
    if answer.status_code >= 300:
        raise RuntimeError(f"POST {path}: {answer.status_code} {answer.text[:1000]}")
    return answer.json()
