"""Whole migrations of stores of other kinds than pgvector, with what their clients may do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from qdrant_client import models

from app.anchors import service as anchor_sets
from app.context import Services
from app.errors import StoreChanged
from app.moves import steps
from app.moves.lease import take_lease
from app.stores.handles import StoreAddress
from app.stores.port import Search, StoreLocation
from app.stores.schemas import NewStore
from app.stores.service import create_store
from tests.helpers import CONTEXT, PROJECT, alter, create_encoder
from tests.moves.moving import Table
from tests.stores.cases.base import LiveStoreCase, Rows
from tests.stores.cases.chroma import ChromaFolderCase, open_client
from tests.stores.cases.qdrant import LocalQdrantCase
from tests.stores.cases.sqlite_vec import SqliteVecCase
from tests.stores.moving import NEW_DIM, OLD_DIM, every, rows, translate


def connect(services: Services, location: StoreLocation, some: Rows) -> Table:
    """Register a store, with its rows as anchors of the encoders `old` and `new`."""
    create_encoder(services, "old", OLD_DIM)
    create_encoder(services, "new", NEW_DIM)
    pairs = {"old": some.vectors, "new": translate(None, some.vectors)}
    embeddings = {name: torch.from_numpy(each) for name, each in pairs.items()}
    anchor_sets.create_anchor_set(services, CONTEXT, name="pairs", embeddings=embeddings)
    services.stores.addresses = {"main": StoreAddress(location.url, frozenset({PROJECT}))}
    named = {"kind": location.kind, "address": "main", "collection": location.collection}
    create_store(services, CONTEXT, NewStore(name="docs", encoder="old", **named))
    return Table(services, None, "docs")  # type: ignore[arg-type]


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_a_vector_that_a_client_adds_to_qdrant_stops_only_the_cutover(
    on_sqlite: Services, tmp_path: Path, named: bool
) -> None:
    case = LocalQdrantCase()
    some = rows(case, 60)
    location = case.fill(tmp_path, some)
    with case.visit(location) as client:
        if not named:
            client.delete_collection("items-1")
            params = models.VectorParams(size=OLD_DIM, distance=models.Distance.COSINE)
            client.create_collection("items-1", params)
            client.upload_collection("items-1", some.vectors, some.payloads, some.ids)
            alias = models.CreateAlias(alias_name="items", collection_name="items-1")
            client.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])
    table = connect(on_sqlite, replace(location, vector_field=None), some)
    second = models.DenseVectorConfig(size=3, distance=models.Distance.DOT)
    moving = table.plan()
    assert moving.do("run").state == "succeeded"
    with case.visit(location) as client:
        client.create_vector_name("items-1", "more", models.DenseVectorNameConfig(dense=second))
    for action in ("sync", "verify"):
        assert moving.do(action).state == "succeeded"
    assert moving.now.row.found["verify"]["passed"]
    with pytest.raises(StoreChanged, match="a client added or removed one"):
        steps.take_step(on_sqlite, CONTEXT, moving.id, "cutover")
    with case.visit(location) as client:  # then nobody can say which vector is meant
        client.delete_vector_name("items-1", "text" if named else "")
        client.create_vector_name("items-1", "third", models.DenseVectorNameConfig(dense=second))
    steps.take_step(on_sqlite, CONTEXT, moving.id, "abandon")
    with case.visit(location) as client:
        assert [each.name for each in client.get_collections().collections] == ["items-1"]
    on_sqlite.stores.close()


@pytest.mark.parametrize(
    "case", [ChromaFolderCase(), LocalQdrantCase()], ids=lambda each: each.kind
)
def test_a_change_of_another_field_leaves_both_vectors_through_every_switch(
    on_sqlite: Services, tmp_path: Path, case: LiveStoreCase
) -> None:
    some = rows(case, 300)
    lengths = np.linspace(0.5, 4, 300, dtype=np.float32)[:, None]
    location = case.fill(tmp_path, replace(some, vectors=some.vectors * lengths))
    moving = connect(on_sqlite, replace(location, text_field=None), some).plan()
    for action in ("run", "verify"):
        assert moving.do(action).state == "succeeded"
    store = on_sqlite.stores.open(on_sqlite.stores.location(moving.row.store))
    sides = [dict(zip(*every(store, side, 1000), strict=True)) for side in ("old", "new")]
    store.search(Search(some.vectors[:1], 3))  # after which a folder of Qdrant answers otherwise
    moving.do("verify")
    assert moving.now.row.found["verify"]["passed"], moving.now.row.found["verify"]
    for number, step in enumerate(("cutover", "rollback", "cutover", "rollback")):
        steps.take_step(on_sqlite, CONTEXT, moving.id, step)
        for each in some.ids[number * 50 : number * 50 + 50]:
            case.change_text(location, each, "another")
        if number % 2:  # else the next switch brings them to the other side
            moving.do("sync")
    assert moving.now.row.position["applied"] >= 150
    for side, before in zip(("old", "new"), sides, strict=True):
        now = dict(zip(*every(store, side, 1000), strict=True))
        assert all(np.allclose(now[each], before[each], atol=1e-6) for each in some.ids)
    on_sqlite.stores.close()


def test_a_run_repairs_what_verify_finds_in_a_store_of_one_application(
    on_sqlite: Services, tmp_path: Path
) -> None:
    case = SqliteVecCase()
    location = case.fill(tmp_path, some := rows(case, 60))
    moving = connect(on_sqlite, location, some).plan()
    for wanted in ("finish", "run", "finish"):
        if wanted == "run":  # which `verify` asks for
            case.insert(location, rows(case, 1, 60))
        else:
            assert moving.do("run").state == "succeeded"
        assert moving.do("verify").state == "succeeded"
        assert moving.now.next[0] == wanted
    on_sqlite.stores.close()


def test_the_cutover_of_a_chroma_collection_says_which_function_clients_must_pass(
    on_sqlite: Services, tmp_path: Path
) -> None:
    case = ChromaFolderCase()
    location = case.fill(tmp_path, some := rows(case, 60))
    moving = connect(on_sqlite, location, some).plan()
    assert "`get_collection`. Without it Chroma embeds by" in str(moving.row.plan["notes"])
    for action in ("run", "verify"):
        assert moving.do(action).state == "succeeded"
    steps.take_step(on_sqlite, CONTEXT, moving.id, "cutover")
    steps.take_step(on_sqlite, CONTEXT, moving.id, "rollback")
    # A process is killed between the two renames of the next cutover.
    alter(on_sqlite, moving.now.row, position=moving.now.row.position | {"step": "cutover"})
    old = f"{location.collection}.anchorage-{moving.id[:8]}.old"
    with open_client(location.url) as client:
        client.get_collection(location.collection, embedding_function=None).modify(name=old)
    with take_lease(on_sqlite, moving.id):  # another process works on it
        steps.complete_switches(on_sqlite, stopping=lambda: False)
    assert moving.now.is_interrupted
    steps.complete_switches(on_sqlite, stopping=lambda: False)
    assert (moving.state, moving.now.is_interrupted) == ("cut-over", False)
    assert on_sqlite.stores.open(location).facts().dim == NEW_DIM
    case.delete(location, some.ids[:2])  # by a client, of the new side only
    assert moving.do("verify").result["rows"]["only_old"] == some.ids[:2]
    steps.take_step(on_sqlite, CONTEXT, moving.id, "finish")
    on_sqlite.stores.close()
