"""Content-addressed tensors.

The name of a file is the SHA-256 of its bytes. The file is written before a row names it, and never
changes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from app.errors import AnchorageError, BlobMissing, StorageUnavailable
from app.ops import metrics

log = logging.getLogger("anchorage.blobs")

#: when to try again after the disk was full or away
RETRY_S = 30

#: a younger blob that no row names may belong to a transaction that has not committed yet
ORPHAN_AGE_S = 3600

#: the owner of a blob in messages, where the caller names none
UNNAMED = "what this request or job reads"


class BlobStore:
    """safetensors files below one folder, two levels deep."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def put(self, tensors: Mapping[str, Tensor]) -> str:
        """Write the tensors and return their content hash. Equal content is stored once.

        Raises StorageUnavailable when the disk is full or away, and leaves no file behind.
        """
        data = save({name: tensor.contiguous() for name, tensor in tensors.items()})
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        try:
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                _sync_folder(self.root)
            if path.exists() and path.read_bytes() == data:
                # A sweep must not delete a file that a row is about to name.
                os.utime(path)
            else:
                _write_whole(path, data)
        except OSError as error:
            log.exception("cannot write a blob")
            raise StorageUnavailable(
                "The vectors could not be stored. Try again.", retry_after_s=RETRY_S
            ) from error
        return digest

    def touch(self, digests: Sequence[str]) -> None:
        """Protect files that a row is about to name from sweeps."""
        try:
            for digest in digests:
                os.utime(self._path(digest))
        except OSError as error:
            raise self._unreadable(digest, error, UNNAMED) from error

    def get(self, digest: str, *, of: str = UNNAMED) -> dict[str, Tensor]:
        """Return the stored tensors. Messages name `of`, the owner of the blob.

        Raises BlobMissing for a file that is missing or does not match its name, and
        StorageUnavailable when the disk is away.
        """
        try:
            data = self._path(digest).read_bytes()
        except OSError as error:
            raise self._unreadable(digest, error, of) from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise _damaged(digest, of)
        return load(data)

    def update_metrics(self) -> None:
        """Set the gauges of the file system, unless it is away."""
        with suppress(OSError):
            disk = shutil.disk_usage(self.root)
            metrics.DATA_BYTES.labels("total").set(disk.total)
            metrics.DATA_BYTES.labels("free").set(disk.free)

    def remove(self, digest: str) -> None:
        """Delete a file that no row can name. The next sweep deletes it if this fails."""
        with suppress(OSError):
            self._path(digest).unlink()

    def sweep(self, named: set[str]) -> int:
        """Delete files older than ORPHAN_AGE_S that no row names, and return their number."""
        limit = time.time() - ORPHAN_AGE_S
        deleted = 0
        try:
            for path in self.root.glob("??/*"):
                with suppress(FileNotFoundError):
                    if path.name not in named and path.stat().st_mtime < limit:
                        path.unlink()
                        deleted += 1
        except OSError as error:
            log.info("the sweep is postponed: %s", error)
        return deleted

    def _path(self, digest: str) -> Path:
        return self.root / digest[:2] / digest

    def _unreadable(self, digest: str, error: OSError, of: str) -> AnchorageError:
        log.error("blob %s of %s cannot be read: %s", digest, of, error)
        # An empty folder means that the disk is not mounted, not that every file is lost.
        if isinstance(error, FileNotFoundError) and next(self.root.glob("??/*"), None) is not None:
            return _lost(of, "missing")
        return StorageUnavailable(
            "The stored vectors could not be read. Try again.", retry_after_s=RETRY_S
        )


def _damaged(digest: str, of: str) -> BlobMissing:
    log.error("blob %s of %s is damaged: its content does not match its name", digest, of)
    return _lost(of, "damaged")


def _lost(of: str, how: str) -> BlobMissing:
    return BlobMissing(
        f"The stored content of {of} is {how}. Delete it and create it again, "
        "or ask the operator to restore a backup."
    )


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: it appears with all its bytes on disk, or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Sync the folder entry, so that a power cut cannot lose a file that a row names."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
