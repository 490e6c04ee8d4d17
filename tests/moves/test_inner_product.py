"""A store that compares by inner product keeps lengths, in searches and in migrations."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import torch
from torch import Tensor

from app.anchors import service as anchor_sets
from app.context import Services
from app.moves import steps
from app.search.schemas import StoreSearchRequest
from app.search.service import search_store
from app.stores.handles import StoreAddress
from app.stores.schemas import NewStore
from app.stores.service import create_store
from tests.helpers import CONTEXT, PROJECT, create_encoder
from tests.moves.moving import ROWS, Table, items, make_table, new, old
from tests.pgvector_server import PgvectorServer


def embed(count: int, seed: int) -> dict[str, Tensor]:
    """Vectors of items by both encoders, with one length of each item, from .2 to 9."""
    factors, generator = items(count, seed), torch.Generator().manual_seed(seed)
    lengths = 0.2 * 45 ** torch.rand(count, 1, generator=generator)
    return {"old": lengths * old(factors), "new": lengths * new(factors)}


def test_the_nearest_rows_are_those_of_native_vectors(
    on_sqlite: Services, pgvector_server: PgvectorServer
) -> None:
    on_sqlite.stores.addresses = {"main": StoreAddress(pgvector_server.url, frozenset({PROJECT}))}
    pairs, rows = embed(300, 5), embed(ROWS, 20)
    for name, made in pairs.items():
        create_encoder(on_sqlite, name, made.shape[1])
    anchor_sets.create_anchor_set(on_sqlite, CONTEXT, name="pairs", embeddings=pairs)
    name = make_table(pgvector_server, rows["old"].numpy(), index=False)
    table = Table(on_sqlite, pgvector_server, name)
    table.execute("CREATE INDEX ON {} USING hnsw (embedding vector_ip_ops)")
    place = {"kind": "pgvector", "address": "main", "collection": name}
    create_store(on_sqlite, CONTEXT, NewStore(name=name, encoder="old", **place))
    queries = new(items(40, 7))
    native = (queries @ rows["new"].T).topk(10).indices.tolist()

    def share(found: list[list[Any]]) -> float:
        """How many of ten rows are those that native vectors find."""
        return float(
            np.mean([len({*one} & {*best}) for one, best in zip(found, native, strict=True)])
        )

    def search(mode: str, asked: Tensor = queries, **options: bool) -> list[list[Any]]:
        fields = {"target": "new", "anchor_set": "pairs", "options": options}
        request = StoreSearchRequest(queries=asked, k=10, mode=mode, **fields)
        found, _ = anyio.run(search_store, on_sqlite, CONTEXT, name, request)
        return [each["ids"] for each in found["results"]]

    kept = share(search("cascade"))
    assert kept >= 6
    assert share(search("cascade", keep_norms=False)) < kept - 2
    # The length of a query changes nothing.
    assert search("bridge", 0.01 * queries) == search("bridge")
    flat = table.plan(method="auto", options={"keep_norms": False})
    steps.take_step(on_sqlite, CONTEXT, flat.id, "abandon")
    moving = table.plan(method="auto")
    moving.do("run")
    assert moving.do("verify").result["passed"]
    steps.take_step(on_sqlite, CONTEXT, moving.id, "cutover")
    vectors = moving.read()
    found = np.stack([vectors[row][0] for row in range(ROWS)]) @ queries.numpy().T
    moved = share(np.argsort(-found, axis=0)[:10].T.tolist()) / 10
    assert moved >= 0.6
    by_cosine, by_product = (each.row.plan["estimate"] for each in (flat, moving))
    assert (by_cosine["comparison"], by_product["comparison"]) == ("cosine", "product")
    assert abs(by_product["recall"] - moved) < 0.05 < 0.1 < abs(by_cosine["recall"] - moved)
    on_sqlite.stores.close()
