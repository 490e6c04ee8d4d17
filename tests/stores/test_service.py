"""Stores that are not as they are described, and the encoder that their vectors look like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from app.anchors import likeness
from app.anchors import service as anchor_sets
from app.context import Services
from app.errors import StoreUnsupported
from app.stores import service as stores
from app.stores.handles import StoreAddress
from app.stores.port import StoreLocation
from app.stores.schemas import NewStore, StoreOut
from tests.helpers import CONTEXT, PROJECT, create_encoder
from tests.maths.anchors.test_space_match import encode, items
from tests.stores.cases.base import StoreCase
from tests.stores.cases.chroma import ChromaFolderCase, open_client
from tests.stores.cases.lancedb import LancedbCase, open_table
from tests.stores.cases.qdrant import LocalQdrantCase
from tests.stores.moving import OLD_DIM, rows

ROWS = 50
Connect = Callable[..., StoreOut]


@pytest.fixture
def connect(services: Services) -> Connect:
    create_encoder(services, "old", OLD_DIM)

    def connect(location: StoreLocation, **changes: object) -> StoreOut:
        listed = {"main": StoreAddress(location.url, frozenset({PROJECT}))}
        new = {
            "name": "docs",
            "kind": location.kind,
            "address": "main",
            "collection": location.collection,
            "encoder": "old",
            "vector_field": location.vector_field,
        }
        services.stores.addresses = listed
        return stores.create_store(services, CONTEXT, NewStore(**new | changes))

    return connect


def test_a_second_column_of_vectors_changes_nothing(
    connect: Connect, services: Services, tmp_path: Path
) -> None:
    location = LancedbCase().fill(tmp_path, rows(LancedbCase(), ROWS))
    connect(replace(location, vector_field=None))
    row = stores.find_store(services, PROJECT, "docs")
    open_table(location).add_columns(pa.field("second", pa.list_(pa.float32(), 3)))
    assert stores.call_row(services, row, lambda store: store.facts()).rows == ROWS


@pytest.mark.parametrize("case", [LancedbCase(), LocalQdrantCase()], ids=lambda case: case.kind)
def test_what_a_collection_does_not_have(connect: Connect, tmp_path: Path, case: StoreCase) -> None:
    location = case.fill(tmp_path, rows(case, ROWS))
    with pytest.raises(StoreUnsupported, match=r"has no collection .nowhere.*Correct") as caught:
        connect(location, collection="nowhere")
    assert caught.value.field == "collection"
    assert str(tmp_path) not in caught.value.detail
    for field in ("number", "nope", "{text} {nope}"):
        with pytest.raises(StoreUnsupported, match=r"number|nope.*text") as caught:
            connect(location, text_field=field)
        assert caught.value.field == "text_field"
    connect(location, text_field="text")


def test_the_texts_of_a_chroma_collection_are_its_documents(
    connect: Connect, tmp_path: Path
) -> None:
    location = ChromaFolderCase().fill(tmp_path, rows(ChromaFolderCase(), ROWS))
    assert connect(location).text_field == "chroma:document"
    assert connect(location, name="named", text_field="text").text_field == "text"
    with open_client(location.url) as client:
        collection = client.create_collection("bare", embedding_function=None)
        collection.add(["a"], embeddings=np.ones((1, OLD_DIM)))
    bare = connect(location, name="bare", collection="bare")
    assert (bare.text_field, len(bare.notes)) == (None, 4)  # no function, so no note about it


def test_encoders_of_other_sets_are_compared_too(services) -> None:
    rows = {name: create_encoder(services, name, 32) for name in ("old", "new", "third")}
    create_encoder(services, "narrow", 16)
    wide, narrow = items(120, 1), items(90, 3)
    old, new, third = (encode(wide, 0), encode(wide, 1), encode(narrow, 2))
    anchor_sets.create_anchor_set(
        services, CONTEXT, name="both", embeddings={"old": old, "new": new}
    )
    anchor_sets.create_anchor_set(
        services,
        CONTEXT,
        name="other",
        embeddings={"third": third, "narrow": torch.randn(90, 16)},
    )
    for place, name in enumerate(rows):
        vectors = encode(items(60, 2), place).float().numpy()
        match = likeness.check_space(services, rows["old"], vectors)
        assert match.verdict == ("matches" if name == "old" else "another")
        assert match.likeliest == name
        assert {each.encoder for each in match.encoders} == set(rows)
