"""Full and read-only disks under a file store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.errors import StoreFull, StoreRefused, StoreUnsupported
from app.stores.base import StoreLocation
from app.stores.registry import open_store
from tests.disks import fill_disk, remount, small_disk

VECTORS = np.random.default_rng(3).normal(size=(2000, 16)).astype(np.float32)


def test_a_full_disk_keeps_what_is_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024) as disk:
        np.save(disk / "v.npy", VECTORS)
        store = open_store(StoreLocation("files", str(disk), "v.npy"))
        beside = store.beside("0badcafe", 16)
        beside.prepare()
        beside.write(range(100), VECTORS[:100])
        fill_disk(disk, 16)
        with pytest.raises(StoreFull):
            beside.write(range(100, 2000), VECTORS[100:])
        assert beside.count() == 100
        (disk / "ballast").unlink()
        beside.write(range(100, 2000), VECTORS[100:])
        fill_disk(disk, 16)
        with pytest.raises(StoreFull):
            beside.cutover(lambda ids, vectors: vectors)
        assert np.array_equal(np.load(disk / "v.npy"), VECTORS)
        assert store.live().name == "v.npy"
        (disk / "ballast").unlink()
        beside.cutover(lambda ids, vectors: vectors)
        assert np.array_equal(np.load(disk / "v.0badcafe.npy"), VECTORS)
        store.close()


def test_a_fault_of_the_translation_is_not_called_one_of_the_file(tmp_path: Path) -> None:
    """The cutover translates while it reads the old file and writes the new one."""
    np.save(tmp_path / "v.npy", VECTORS)
    store = open_store(StoreLocation("files", str(tmp_path), "v.npy"))
    beside = store.beside("0badcafe", 16)
    beside.prepare()
    with pytest.raises(ValueError, match="broadcast"):
        beside.cutover(lambda ids, vectors: vectors[:, :3])
    store.close()


def test_a_read_only_disk_refuses(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024) as disk:
        np.save(disk / "v.npy", VECTORS)
        remount(disk, "ro")
        store = open_store(StoreLocation("files", str(disk), "v.npy"))
        assert store.facts().rows == 2000
        with pytest.raises(StoreRefused):
            store.beside("0badcafe", 16).prepare()
        store.close()


@pytest.mark.parametrize("url", ["postgresql://u:correct-horse@h/x", "mysql://h/x"])
def test_an_address_of_another_kind(url: str) -> None:
    with pytest.raises(StoreUnsupported, match="no folder and no URL of files") as caught:
        open_store(StoreLocation("files", url, "v.npy")).facts()
    assert caught.value.field == "address"
    assert "correct-horse" not in caught.value.detail
