"""Tables of a LanceDB database, and its faults as errors of this project."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import lancedb

from app.errors import (
    AnchorageError,
    InvalidFilter,
    InvalidRequest,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.base import StoreLocation
from app.stores.common import raised_by, store_faults

#: attempts to commit against clients that write at the same time
COMMIT_ATTEMPTS = 30

#: packages whose errors are faults of the store, and its name in errors
LANCE_PACKAGES = ("lance", "lancedb")
STORE = "The LanceDB store"

#: parts of messages, in lower case, about a client's condition in SQL
FILTER_SIGNS = ("error parsing", "sql parser", "lexer error", "schema error", "no field named")

TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")

Answer = TypeVar("Answer")


def is_conflict(error: Exception) -> bool:
    """Whether another client's commit came first, so that the call may be repeated."""
    text = str(error).lower()
    return "conflict" in text or "concurrent writers" in text or "preempted" in text


def _translate(error: Exception) -> AnchorageError | None:
    if not isinstance(error, OSError) and not raised_by(error, LANCE_PACKAGES):
        return None  # a mistake of ours
    if any(sign in str(error).lower() for sign in FILTER_SIGNS):
        return InvalidFilter(f"{STORE} does not read the filter: {error}.", field="filter")
    if is_conflict(error):
        return StoreUnavailable(
            f"Other clients wrote to the LanceDB table during each of {COMMIT_ATTEMPTS} "
            "attempts to commit. Repeat the call when they write less."
        )
    return None


class LanceConnection:
    """One database, opened when it is first used. Several threads may use it at once."""

    def __init__(self, location: StoreLocation) -> None:
        if location.url.startswith("db://"):
            raise StoreUnsupported(
                "LanceDB Cloud is not supported, because it does not offer commits of columns. "
                "Use the address of a folder or of an object store.",
                field="address",
            )
        if not TABLE_NAME.fullmatch(location.collection):
            raise InvalidRequest(
                f"`collection` is {location.collection!r}, which is not the name of a LanceDB "
                "table. A name has at most 200 letters, digits, `_`, `-` and `.`, and begins with "
                "a letter, a digit or `_`.",
                field="collection",
            )
        self._url = location.url
        self._database: Any = None
        self._lock = threading.Lock()

    def faults(self) -> AbstractContextManager[None]:
        """Return a block that raises faults of LanceDB as errors of this project."""
        return store_faults(STORE, LANCE_PACKAGES, _translate)

    @property
    def database(self) -> Any:
        with self._lock, self.faults():
            if self._database is None:
                if "://" not in self._url and not Path(self._url).is_dir():
                    raise StoreUnavailable("The folder of the address does not exist.")
                # Every read sees the latest version, as another process may have written it.
                self._database = lancedb.connect(self._url, read_consistency_interval=timedelta(0))
            return self._database

    def table(self, name: str) -> Any:
        """Return a table. Raises StoreChanged if it does not exist."""
        with self.faults():
            return self.database.open_table(name)

    def find_table(self, name: str) -> Any | None:
        """Return a table, or None if it does not exist."""
        try:
            return self.database.open_table(name)
        except (ValueError, OSError, RuntimeError) as error:
            if "not found" in str(error).lower():
                return None
            with self.faults():
                raise

    def dataset(self, name: str) -> Any:
        """Return the latest version of a table. Raises StoreChanged if it does not exist."""
        with self.faults():
            return self.table(name).to_lance()

    def committing(self, call: Callable[[], Answer]) -> Answer:
        """Return what `call` returns, repeated while commits of other clients come first."""
        with self.faults():
            for _ in range(COMMIT_ATTEMPTS - 1):
                try:
                    return call()
                except (OSError, RuntimeError, ValueError) as error:
                    if not is_conflict(error):
                        raise
            return call()

    def close(self) -> None:
        with self._lock:
            self._database = None
