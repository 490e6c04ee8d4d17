"""Content-addressed tensors on a real disk."""

from __future__ import annotations

import hashlib
import os
import resource
import time
from pathlib import Path

import pytest
import torch

from app.db.blobs import ORPHAN_AGE_S, BlobStore
from app.errors import BlobMissing, StorageUnavailable


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def files(blobs: BlobStore) -> list[Path]:
    return [path for path in blobs.root.glob("??/*") if path.is_file()]


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_tensors_come_back_bit_for_bit(blobs, dtype):
    weight = torch.arange(12).reshape(3, 4).to(dtype)
    tensors = {"weight": weight.T, "bias": torch.arange(3), "none": torch.empty(0, 2)}
    back = blobs.get(blobs.put(tensors))
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], each) for name, each in tensors.items())
    assert back["weight"].dtype == dtype


def test_equal_content_is_one_file_named_by_the_hash_of_its_bytes_and_other_content_another(blobs):
    first = blobs.put({"a": torch.ones(3)})
    assert blobs.put({"a": torch.ones(3).clone()}) == first
    (path,) = files(blobs)
    assert path == blobs.root / first[:2] / first
    assert hashlib.sha256(path.read_bytes()).hexdigest() == first
    others = ({"a": torch.ones(4)}, {"b": torch.ones(3)}, {"a": torch.ones(3).double()})
    assert first not in {blobs.put(each) for each in others}
    assert len(files(blobs)) == 4


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"\7"])
def test_a_damaged_file_is_not_read_and_replaced_by_the_next_upload_of_its_content(blobs, damage):
    digest = blobs.put({"a": torch.ones(3)})
    (path,) = files(blobs)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BlobMissing, match="damaged"):
        blobs.get(digest)
    assert blobs.put({"a": torch.ones(3)}) == digest
    assert torch.equal(blobs.get(digest)["a"], torch.ones(3))


def test_a_missing_file_is_an_error_that_waiting_does_not_mend_and_names_its_owner(blobs):
    blobs.put({"a": torch.ones(3)})
    for call in (blobs.get, lambda name: blobs.touch([name])):
        with pytest.raises(BlobMissing) as caught:
            call("0" * 64)
        assert caught.value.retry_after_s is None
        assert "0" * 64 not in caught.value.detail  # the name of a file is the operator's to know
    with pytest.raises(BlobMissing, match=r"of anchor set 's' is missing.* restore a backup"):
        blobs.get("0" * 64, of="anchor set 's'")


def test_an_empty_or_missing_folder_is_a_disk_that_is_not_there_yet(blobs):
    """An empty folder is a failed mount: clients must not delete and recreate their resources."""
    with pytest.raises(StorageUnavailable) as caught:
        blobs.get("0" * 64)
    assert caught.value.retry_after_s > 0
    blobs.root.rename(blobs.root.with_name("away"))
    for call in (lambda: blobs.get("0" * 64), lambda: blobs.put({"a": torch.zeros(3)})):
        with pytest.raises(StorageUnavailable):
            call()


def test_a_full_disk_is_unavailable_and_nothing_is_left_behind(blobs):
    """The kernel refuses to let the file grow, as a full disk does."""
    kept = blobs.put({"a": torch.ones(3)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageUnavailable) as caught:
            blobs.put({"a": torch.ones(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.retry_after_s > 0
    assert [path.name for path in files(blobs)] == [kept]
    assert torch.equal(blobs.get(blobs.put({"a": torch.ones(100_000)}))["a"], torch.ones(100_000))


def test_a_sweep_takes_only_old_files_that_nothing_names(blobs):
    named, young, old = (blobs.put({"a": torch.full((2,), value)}) for value in (1.0, 2.0, 3.0))
    half_written = blobs.root / named[:2] / "tmpabc123"  # by a process that was killed
    half_written.write_bytes(b"half")
    again, touched = (blobs.put({"a": torch.full((2,), value)}) for value in (4.0, 5.0))
    aged_blobs = [blobs.root / name[:2] / name for name in (named, old, again, touched)]
    long_ago = time.time() - 2 * ORPHAN_AGE_S
    for path in (*aged_blobs, half_written):
        os.utime(path, (long_ago, long_ago))
    assert blobs.put({"a": torch.full((2,), 4.0)}) == again
    blobs.touch([touched])
    assert blobs.sweep({named}) == 2
    assert {path.name for path in files(blobs)} == {named, young, again, touched}
    assert blobs.sweep({named}) == 0
