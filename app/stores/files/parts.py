"""New vectors of a sweep, in parts next to the old file: each part appears whole or not at all.

A part is an npy file of records (row, vector). Of two parts with the same row, the later one holds.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.errors import StoreChanged
from app.stores.base import StoreVectors
from app.stores.files.faults import file_faults
from app.stores.files.folder import VectorFolder

#: parts that are in memory at once
OPEN_PARTS = 4


class SweepParts:
    """The parts of one folder. Memory: 8 bytes for each row of the file, and some parts."""

    def __init__(self, folder: VectorFolder, name: str, rows: int, dim: int) -> None:
        self._folder, self._name, self.dim = folder, name, dim
        self._kind = np.dtype([("row", "<i8"), ("vector", "<f4", (dim,))])
        self._part = np.full(rows, -1, np.int32)
        self._slot = np.zeros(rows, np.int32)
        self._open: dict[int, NDArray[np.void]] = {}
        self.parts = 0
        for each in folder.list(name):
            if each.startswith("part-") and each.endswith(".npy"):
                number = int(each[5:-4])
                self._note(number, self._load(number)["row"])

    def _note(self, number: int, rows: NDArray[np.int64]) -> None:
        self._part[rows] = number
        self._slot[rows] = np.arange(len(rows))
        self.parts = max(self.parts, number + 1)

    def _file(self, number: int) -> str:
        return f"{self._name}/part-{number:08d}.npy"

    def _load(self, number: int) -> NDArray[np.void]:
        if number not in self._open:
            name = self._file(number)
            with file_faults(name):
                content = self._folder.fs.cat_file(self._folder.path(name))
                records = np.load(io.BytesIO(content), allow_pickle=False)
            rows = records["row"] if records.dtype == self._kind else None
            if rows is None or (len(rows) and not 0 <= rows.min() <= rows.max() < len(self._part)):
                raise StoreChanged(
                    f"{name!r} is no part of this reindexing. Abandon it and begin a new plan."
                )
            while len(self._open) >= OPEN_PARTS:
                del self._open[next(iter(self._open))]
            self._open[number] = records
        return self._open[number]

    def present(self) -> NDArray[np.bool_]:
        """Return for each row whether it has a new vector."""
        return self._part >= 0

    def add(self, rows: NDArray[np.int64], vectors: StoreVectors) -> None:
        """Write a part of different rows."""
        if len(rows) == 0:
            return
        records = np.empty(len(rows), self._kind)
        records["row"], records["vector"] = rows, vectors
        content = io.BytesIO()
        np.save(content, records, allow_pickle=False)
        self._folder.write_whole(self._file(self.parts), content.getbuffer())
        self._note(self.parts, rows)

    def read(self, rows: Sequence[int] | NDArray[np.int64]) -> StoreVectors:
        """Return the new vectors (n, d) of rows that have one."""
        wanted = np.asarray(rows, np.int64)
        vectors = np.empty((len(wanted), self.dim), np.float32)
        parts = self._part[wanted]
        for number in np.unique(parts):
            mine = parts == number
            vectors[mine] = self._load(int(number))["vector"][self._slot[wanted[mine]]]
        return vectors
