"""Turns what file systems and readers raise into errors of stores."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from app.errors import (
    AnchorageError,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.library_faults import raised_by_library

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def file_faults(name: str) -> Iterator[None]:
    """Raise errors of stores. name: the file, below the address."""
    try:
        yield
    except AnchorageError:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise StoreChanged(
            f"There is no file {name!r} at the address. Compare `collection` with the files there; "
            "if a reindexing has begun, restore the file."
        ) from None
    except (MemoryError, pa.ArrowMemoryError):
        raise StoreUnsupported(
            f"{name!r} does not fit in memory: one of its blocks is too large. Write the file "
            "again with row groups or batches of at most 10,000 rows."
        ) from None
    except (pa.ArrowException, EOFError, UnicodeDecodeError) as error:
        raise _damaged(name, error) from None
    except OSError as error:
        raise _of_system(name, error) from None
    except ValueError as error:
        if not raised_by_library(error):
            raise
        raise _damaged(name, error) from None


def _of_system(name: str, error: OSError) -> AnchorageError:
    if error.errno in NO_SPACE or "no space left" in str(error).lower():
        return StoreFull(f"The disk of {name!r} is full. Free space there, then continue.")
    if error.errno in NO_PERMISSION:
        return StoreRefused(
            f"The file system refuses access to {name!r} ({error.strerror}). Ask the operator for "
            "permissions to read and write in the folder."
        )
    if error.errno is None:
        # Arrow raises these for a damaged file
        return _damaged(name, error)
    return StoreUnavailable(
        f"The file system of {name!r} failed ({error.strerror}). Try again when it works."
    )


def _damaged(name: str, error: BaseException) -> StoreUnsupported:
    reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return StoreUnsupported(
        f"{name!r} cannot be read as Parquet, Arrow IPC or npy: {reason}. It is truncated or "
        "damaged, or has another format. Write it again."
    )
