"""Qdrant beyond the contract: other vectors, ids, filters, forms that are refused, and faults."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from app.errors import InvalidFilter, StoreChanged, StoreUnavailable, StoreUnsupported
from app.stores.port import Search, StoreLocation
from app.stores.qdrant.client import QdrantConnection
from app.stores.qdrant.store import QdrantPlace, copied_config
from app.stores.registry import open_store
from tests.stores.moving import NEW_DIM, OLD_DIM, TAG, fill_migration, translate

COSINE, DOT = models.Distance.COSINE, models.Distance.DOT
VECTORS = np.random.default_rng(7).normal(size=(12, OLD_DIM)).astype(np.float32)


def local(folder: Path, vectors, points, alias: str | None = "items", **more) -> StoreLocation:
    client = QdrantClient(path=str(folder / "q"))
    client.create_collection("base", vectors, **more)
    if alias:
        operation = models.CreateAlias(alias_name=alias, collection_name="base")
        client.update_collection_aliases([models.CreateAliasOperation(create_alias=operation)])
    if points:
        client.upsert("base", points)
    client.close()
    return StoreLocation("qdrant", str(folder / "q"), alias or "base", text_field="text")


def visit(location: StoreLocation):
    return QdrantConnection(location.url, "").session()


def plain_points():
    return [
        models.PointStruct(id=row, vector=VECTORS[row].tolist(), payload={"n": row})
        for row in range(12)
    ]


def several(folder: Path) -> StoreLocation:
    """A collection with two dense and one sparse vector; not each point has each."""
    points = []
    for row in range(12):
        vector = {"a": VECTORS[row].tolist(), "b": [1.0, float(row)]}
        vector["s"] = models.SparseVector(indices=[1, row + 5], values=[0.5, 0.25])
        if row % 3 == 2:
            del vector["a"]
        points.append(models.PointStruct(id=row, vector=vector, payload={"n": row}))
    location = local(
        folder,
        {
            "a": models.VectorParams(size=OLD_DIM, distance=COSINE),
            "b": models.VectorParams(size=2, distance=DOT),
        },
        points,
        sparse_vectors_config={"s": models.SparseVectorParams()},
        metadata={"owner": "somebody"},
    )
    return StoreLocation("qdrant", location.url, location.collection, vector_field="a")


def test_rows_without_a_vector_push_out_none_whose_text_is_embedded(tmp_path: Path) -> None:
    """A client changes such a text, of which the new vector is not."""
    made = {"a": VECTORS[0].tolist()}
    points = [
        models.PointStruct(id=row, vector=made if row in (0, 99) else {}, payload={"text": "first"})
        for row in range(100)
    ]
    location = local(tmp_path, {"a": models.VectorParams(size=OLD_DIM, distance=COSINE)}, points)
    store = open_store(location)
    migration = store.migration(TAG, NEW_DIM)
    migration.prepare()
    page = store.scroll_texts(None, 5)
    assert (page.texts, store.scroll_texts(page.cursor, 5).ids) == (["first"], [99])
    with visit(location) as client:
        client.set_payload("items", {"text": "second"}, points=[0])
    migration.write(page.ids, np.ones((1, NEW_DIM), np.float32))
    migration.build_index()
    changes = migration.changes(100)
    assert 0 in set(changes.ids) - {*changes.same_text}


def test_other_vectors_payloads_and_metadata_survive(tmp_path: Path) -> None:
    location = several(tmp_path)
    store = open_store(location)
    with visit(location) as client:
        before = client.scroll("items", limit=50, with_vectors=["b", "s"])[0]
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration, 5)
    assert store.facts().rows == migration.count() == 8
    with pytest.raises(StoreUnsupported, match="'a', 'b'"):
        open_store(StoreLocation("qdrant", location.url, "items")).facts()
    migration.cutover(translate)
    migration.finish()
    with visit(location) as client:
        assert client.scroll("items", limit=50, with_vectors=["b", "s"])[0] == before
        metadata = client.get_collection("items").config.metadata
        assert metadata["owner"] == "somebody"
        assert not any(TAG in key for key in metadata)
        assert not any(TAG in each.alias_name for each in client.get_aliases().aliases)
    assert store.facts().dim == NEW_DIM
    store.close()


def test_uuids_are_text_and_missing_or_odd_ids_are_left_out(tmp_path: Path) -> None:
    ids = [str(uuid4()) for _ in range(3)] + [5]
    points = [
        models.PointStruct(id=each, vector=VECTORS[row].tolist(), payload={"text": f"t{row}"})
        for row, each in enumerate(ids)
    ]
    location = local(tmp_path, models.VectorParams(size=OLD_DIM, distance=DOT), points)
    store = open_store(location)
    page = store.fetch([ids[1], "not a UUID", -1, 5, UUID(ids[0]).hex, str(uuid4()), True])
    assert list(page.ids) == [ids[1], 5, UUID(ids[0]).hex]
    assert np.allclose(page.vectors, VECTORS[[1, 3, 0]])
    assert list(store.texts([ids[0], "x", 5])) == ["t0", None, "t3"]
    assert sorted(map(str, store.scroll(None, 10).ids)) == sorted(map(str, ids))
    store.close()


def test_filters_are_checked(tmp_path: Path) -> None:
    location = local(tmp_path, models.VectorParams(size=OLD_DIM, distance=DOT), plain_points())
    store = open_store(location)
    wanted = {"must": [{"key": "n", "range": {"gte": 9}}]}
    [hits] = store.search(Search(VECTORS[:1], 10, filter=wanted))
    assert sorted(hits.ids) == [9, 10, 11]
    for wrong in ({"must": [{"key": 3}]}, {"nonsense": 1}, "text", [1], 7):
        with pytest.raises(InvalidFilter):
            store.search(Search(VECTORS[:1], 10, filter=wrong))
    store.close()


def test_euclidean_scores_are_larger_for_nearer_rows(tmp_path: Path) -> None:
    params = models.VectorParams(size=OLD_DIM, distance=models.Distance.EUCLID)
    store = open_store(local(tmp_path, params, plain_points()))
    [hits] = store.search(Search(VECTORS[:1], 12))
    distances = np.linalg.norm(VECTORS - VECTORS[0], axis=1)
    assert list(hits.ids) == np.argsort(distances).tolist()
    assert not store.capabilities.keeps_lengths
    assert np.allclose(hits.scores, -np.sort(distances), atol=1e-4)
    assert [note.code for note in store.facts().notes] == ["writes-not-captured"]
    assert store.capabilities.keeps_lengths
    store.close()


def test_without_an_alias_a_collection_can_only_be_searched(tmp_path: Path) -> None:
    params = models.VectorParams(size=OLD_DIM, distance=DOT)
    store = open_store(local(tmp_path, params, plain_points(), alias=None))
    facts = store.facts()
    assert not facts.can_migrate
    assert [note.code for note in facts.notes] == ["no-alias"]
    assert store.search(Search(VECTORS[:1], 1))[0].ids[0] == np.argmax(VECTORS @ VECTORS[0])
    with pytest.raises(StoreUnsupported, match="create an alias"):
        store.migration(TAG, NEW_DIM).prepare()
    store.location = StoreLocation("qdrant", store.location.url, "typo")
    with pytest.raises(StoreChanged, match="There are: "):
        store.facts()
    store.close()


@pytest.mark.parametrize(
    "params",
    [
        models.VectorParams(size=OLD_DIM, distance=models.Distance.MANHATTAN),
        models.VectorParams(size=OLD_DIM, distance=DOT, datatype=models.Datatype.UINT8),
        models.VectorParams(
            size=OLD_DIM,
            distance=DOT,
            multivector_config=models.MultiVectorConfig(
                comparator=models.MultiVectorComparator.MAX_SIM
            ),
        ),
    ],
)
def test_forms_that_cannot_be_translated_are_refused(tmp_path: Path, params) -> None:
    store = open_store(local(tmp_path, params, []))
    with pytest.raises(StoreUnsupported):
        store.facts()
    store.close()


def test_the_copied_configuration_is_that_of_the_server() -> None:
    """A server reports more settings than local mode; the copy has each of them."""
    vectors = models.VectorParams(size=OLD_DIM, distance=COSINE, on_disk=True)
    settings = {
        "hnsw_config": {
            "m": 24,
            "ef_construct": 200,
            "full_scan_threshold": 9,
            "max_indexing_threads": 3,
        },
        "wal_config": {"wal_capacity_mb": 64, "wal_segments_ahead": 1, "wal_retain_closed": 2},
        "quantization_config": {"scalar": {"type": models.ScalarType.INT8, "always_ram": True}},
        "strict_mode_config": {"enabled": True, "max_query_limit": 77},
        "metadata": {"owner": "x"},
    }
    optimizer = {"deleted_threshold": 0.3, "vacuum_min_vector_number": 99}
    optimizer |= {"default_segment_number": 2, "flush_interval_sec": 7}
    params = {"shard_number": 3, "replication_factor": 2, "write_consistency_factor": 2}
    params |= {"on_disk_payload": True}
    config = models.CollectionConfig.model_validate(
        settings | {"params": params | {"vectors": vectors}, "optimizer_config": optimizer}
    )
    info = models.CollectionInfo.model_construct(config=config)
    copy = copied_config(QdrantPlace("base", info, ""), 9)
    made = models.CreateCollection(vectors=copy.pop("vectors_config"), **copy)
    assert made.vectors == vectors.model_copy(update={"size": 9})
    expected = settings | params | {"optimizers_config": optimizer}
    assert made.model_dump(exclude={"vectors"}, exclude_none=True) == expected


# --- order of the steps ---------------------------------------------------------------------------


def test_a_collection_that_changed_stops_the_cutover(tmp_path: Path) -> None:
    location = several(tmp_path)
    store = open_store(location)
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration, 5)
    with visit(location) as client:
        client.delete_collection(f"base-{TAG}")
    with pytest.raises(StoreChanged):
        migration.cutover(translate)
    with visit(location) as client:
        client.delete_collection("base")
    for call in (store.facts, lambda: store.scroll(None, 5)):
        with pytest.raises(StoreChanged):
            call()
    store.close()


# --- faults ---------------------------------------------------------------------------------------


def test_a_wrong_folder_is_not_created(tmp_path: Path) -> None:
    store = open_store(StoreLocation("qdrant", str(tmp_path / "no"), "items"))
    with pytest.raises(StoreChanged, match=r"meta\.json"):
        store.facts()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_another_client_has_open(tmp_path: Path) -> None:
    location = local(tmp_path, models.VectorParams(size=OLD_DIM, distance=DOT), plain_points())
    other, store = QdrantClient(path=location.url), open_store(location)
    with pytest.raises(StoreUnavailable, match="Another process"):
        store.facts()
    other.close()
    assert store.facts().rows == 12
    store.close()


def test_a_server_that_does_not_answer_is_unavailable_and_its_key_is_not_shown() -> None:
    store = open_store(StoreLocation("qdrant", "http://:s3cret@127.0.0.1:9", "items"))
    with pytest.raises(StoreUnavailable) as caught:
        store.facts()
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(store.location)
    store.close()
