"""Content-addressed tensors: a file is named by the SHA-256 of its bytes, written before any row names it, and never changed."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from app.errors import StorageUnavailable

log = logging.getLogger("anchorage.blobs")

#: a disk that is full or away may take a while
RETRY_S = 30

#: an unnamed blob younger than this may belong to a request still on its way to its commit
ORPHAN_AGE_S = 3600


class BlobStore:
    """safetensors files below one folder, two levels deep."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def put(self, tensors: Mapping[str, Tensor]) -> str:
        """Write the tensors once and return their content hash; equal content is one file.

        Raises StorageUnavailable when the disk is full or away: nothing is left behind.
        """
        data = save({name: tensor.contiguous() for name, tensor in tensors.items()})
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        try:
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                _sync_folder(self.root)
            if path.exists() and path.read_bytes() == data:
                # A sweep must not take a file that a row is about to name.
                os.utime(path)
            else:
                _write_whole(path, data)
        except OSError as error:
            log.exception("a blob cannot be written")
            raise StorageUnavailable("vectors cannot be stored now; try again", retry_after_s=RETRY_S) from error
        return digest

    def touch(self, digests: Sequence[str]) -> None:
        """Let no sweep take files that a row is about to name. Raises StorageUnavailable for one that is away."""
        try:
            for digest in digests:
                os.utime(self._path(digest))
        except OSError as error:
            raise _unreadable(digest) from error

    def shape(self, digest: str, name: str) -> list[int]:
        """That of a tensor, of which nothing is read. Raises as `get`."""
        try:
            with safe_open(self._path(digest), framework="pt") as file:
                return list(file.get_slice(name).get_shape())
        except OSError as error:
            raise _unreadable(digest) from error
        except SafetensorError as error:
            raise _damaged(digest) from error

    def copy(self, digest: str, name: str, to: Tensor) -> None:
        """Read a tensor to where it will stay, with no copy of it in between. Raises as `get`."""
        path = self._path(digest)
        try:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    raise _damaged(digest)
            with safe_open(path, framework="pt") as mapped:
                to.copy_(mapped.get_tensor(name))
        except OSError as error:
            raise _unreadable(digest) from error

    def get(self, digest: str) -> dict[str, Tensor]:
        """Read the tensors back. Raises StorageUnavailable for a file that is away or no longer matches its name."""
        try:
            data = self._path(digest).read_bytes()
        except OSError as error:
            raise _unreadable(digest) from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise _damaged(digest)
        return load(data)

    def remove(self, digest: str) -> None:
        """Delete a file that nothing else can name. One that cannot be deleted is left to the sweep."""
        with suppress(OSError):
            self._path(digest).unlink()

    def sweep(self, named: set[str]) -> int:
        """Delete files that no row names and that are old enough not to be on their way to one; return how many."""
        limit = time.time() - ORPHAN_AGE_S
        deleted = 0
        for path in self.root.glob("??/*"):
            with suppress(FileNotFoundError):  # another process may be sweeping too
                if path.name not in named and path.stat().st_mtime < limit:
                    path.unlink()
                    deleted += 1
        return deleted

    def _path(self, digest: str) -> Path:
        return self.root / digest[:2] / digest


def _unreadable(digest: str) -> StorageUnavailable:
    log.exception("blob %s cannot be read", digest)
    return StorageUnavailable("stored vectors cannot be read now; try again", retry_after_s=RETRY_S)


def _damaged(digest: str) -> StorageUnavailable:
    log.error("blob %s is damaged: its content does not match its name", digest)
    return StorageUnavailable("stored vectors are damaged: the operator must restore them", retry_after_s=RETRY_S)


def _write_whole(path: Path, data: bytes) -> None:
    """The file appears with all its bytes on disk, or not at all."""
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
    """A row that names a file must not outlive a power cut that the file's name does not."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
