"""Parquet and Arrow files, which other programs rewrite whole and find by the pointer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import feather, parquet

from app.stores.base import StoreId, StoreLocation
from tests.stores.cases.base import Rows, StoreCase


class ParquetCase(StoreCase):
    """A Parquet file with small row groups."""

    kind = "files"
    strategies = ("new-file",)
    name = "items.parquet"
    fixed = True

    def path(self, location: StoreLocation) -> Path:
        """Return the live file, as docs/how-to/vector-files.md tells readers."""
        path = Path(location.url) / location.collection
        pointer = path.with_name(f"{path.name}.live.json")
        return path.with_name(json.loads(pointer.read_text())["file"]) if pointer.exists() else path

    def load(self, path: Path) -> pa.Table:
        return parquet.read_table(path)

    def save(self, path: Path, table: pa.Table) -> None:
        parquet.write_table(table, path, row_group_size=8)

    def table(self, rows: Rows) -> pa.Table:
        kind = (
            pa.list_(pa.float32(), rows.vectors.shape[1]) if self.fixed else pa.list_(pa.float32())
        )
        columns: dict[str, Any] = {
            key: [payload[key] for payload in rows.payloads] for key in rows.payloads[0]
        }
        return pa.table(
            {
                "id": pa.array(rows.ids, pa.int64()),
                "embedding": pa.array(rows.vectors.tolist(), kind),
                **columns,
            }
        )

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        (folder / "files").mkdir()
        location = StoreLocation(self.kind, str(folder / "files"), self.name, text_field="text")
        self.save(self.path(location), self.table(rows))
        return location

    def insert(self, location: StoreLocation, rows: Rows) -> None:
        table = self.load(self.path(location))
        mine = np.isin(table["id"].to_numpy(), list(rows.ids))
        table = pa.concat_tables([table.filter(pa.array(~mine)), self.table(rows)])
        self.save(self.path(location), table)

    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        table = self.load(self.path(location))
        mine = np.isin(table["id"].to_numpy(), list(ids))
        self.save(self.path(location), table.filter(pa.array(~mine)))

    def read(self, location: StoreLocation) -> dict[StoreId, tuple[np.ndarray, dict[str, Any]]]:
        found = {}
        for row in self.load(self.path(location)).to_pylist():
            vector = np.float32(row.pop("embedding"))
            found[row.pop("id")] = (vector, row)
        return found


class ArrowCase(ParquetCase):
    """An Arrow IPC file with small batches and lists of any length."""

    name = "items.arrow"
    fixed = False

    def load(self, path: Path) -> pa.Table:
        return feather.read_table(path, memory_map=False)

    def save(self, path: Path, table: pa.Table) -> None:
        feather.write_feather(table, path, compression="zstd", chunksize=8)
