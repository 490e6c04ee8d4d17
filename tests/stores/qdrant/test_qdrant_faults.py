"""Full and read-only disks under Qdrant's local mode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from app.errors import StoreFull, StoreRefused
from app.stores.port import StoreLocation
from app.stores.registry import open_store
from tests.disks import fill_disk, remount, small_disk

VECTORS = np.random.default_rng(3).normal(size=(40, 64)).astype(np.float32)


def local(disk: Path) -> StoreLocation:
    client = QdrantClient(path=str(disk / "q"))
    client.create_collection("base", models.VectorParams(size=64, distance=models.Distance.DOT))
    points = [
        models.PointStruct(id=row, vector=VECTORS[row].tolist(), payload={}) for row in range(40)
    ]
    client.upsert("base", points)
    alias = models.CreateAlias(alias_name="items", collection_name="base")
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])
    client.close()
    return StoreLocation("qdrant", str(disk / "q"), "items")


def test_a_full_disk_of_local_mode(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2048) as disk:
        store = open_store(local(disk))
        migration = store.migration("0badcafe", 64)
        migration.prepare()
        migration.write(range(3), VECTORS[:3])
        fill_disk(disk, 0)
        with pytest.raises(StoreFull):
            migration.write(range(3, 40), VECTORS[3:])
        (disk / "ballast").unlink()
        migration.write(range(40), VECTORS)
        assert migration.count() == 40
        store.close()
        assert np.allclose(store.fetch(range(40), "new").vectors, VECTORS)
        store.close()


def test_a_read_only_disk_refuses(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 200_000) as disk:
        location = local(disk)
        remount(disk, "ro")
        with pytest.raises(StoreRefused):
            open_store(location).facts()
