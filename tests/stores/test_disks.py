"""Full and read-only disks under stores that are files: no row is lost, and the error says it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from app.errors import StoreFull, StoreRefused, StoreUnavailable
from app.stores.port import NewVectors, StoreId
from app.stores.registry import open_store
from tests.disks import read_only, small_disk
from tests.stores.cases.base import StoreCase
from tests.stores.cases.chroma import ChromaFolderCase
from tests.stores.cases.faiss import FaissCase
from tests.stores.cases.lancedb import LancedbCase
from tests.stores.cases.qdrant import LocalQdrantCase
from tests.stores.cases.sqlite_vec import SqliteVecCase
from tests.stores.moving import TAG, rows

#: each with the size of the disk in KiB and dimensions of 50 vectors that do not fit
DISKS = [
    (LocalQdrantCase(), 2048, 20_000),
    (ChromaFolderCase(), 4096, 32_768),
    (LancedbCase(), 2048, 16_384),
    (SqliteVecCase(), 2048, 8_000),
    (FaissCase(), 1024, 3_072),
]


def write_and_publish(migration: NewVectors, ids: Sequence[StoreId], vectors: np.ndarray) -> None:
    migration.write(ids, vectors)
    migration.build_index()


@pytest.mark.parametrize(("case", "size", "dim"), DISKS, ids=[each[0].kind for each in DISKS])
def test_a_full_disk_and_a_read_only_one_keep_the_rows(
    case: StoreCase, size: int, dim: int, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", size) as disk:
        location = case.fill(disk, rows(case, 50))
        before, store = case.read(location), open_store(location)
        migration = store.migration(TAG, dim)
        migration.prepare()
        wide = np.random.default_rng(0).normal(size=(50, dim)).astype(np.float32)
        with pytest.raises((StoreFull, StoreUnavailable)):  # sqlite-vec hides the reason
            write_and_publish(migration, case.ids(*range(50)), wide)
        after = case.read(location)
        assert set(after) == set(before)
        assert all(np.allclose(after[id][0], before[id][0], atol=1e-6) for id in before)
        store.close()
        with read_only(disk):
            store = open_store(location)
            with pytest.raises(StoreRefused):
                store.migration(TAG, dim).write(case.ids(0), wide[:1], replace=True)
            store.close()
