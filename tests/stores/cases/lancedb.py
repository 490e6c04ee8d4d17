"""LanceDB for the contract suite: a table in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import BTree, IvfFlat

from app.stores.port import StoreId, StoreLocation
from tests.stores.cases.base import Rows, StoreCase


def as_table(rows: Rows, kind: pa.DataType = pa.float32()) -> pa.Table:  # noqa: B008
    dim = rows.vectors.shape[1]
    numbers = np.asarray(rows.vectors, kind.to_pandas_dtype())
    flat = pa.array(np.ascontiguousarray(numbers).reshape(-1), kind)
    return pa.table(
        {
            "id": pa.array(rows.ids),
            "text": [payload["text"] for payload in rows.payloads],
            "number": [payload["number"] for payload in rows.payloads],
            "json": [json.dumps(payload) for payload in rows.payloads],
            "vector": pa.FixedSizeListArray.from_arrays(flat, dim),
        }
    )


def open_table(location: StoreLocation) -> Any:
    database = lancedb.connect(location.url, read_consistency_interval=timedelta(0))
    return database.open_table(location.collection)


class LancedbCase(StoreCase):
    kind = "lancedb"

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        url = str(folder / "lance")
        table = lancedb.connect(url).create_table("items", as_table(rows))
        table.create_index("vector", config=IvfFlat(distance_type="cosine", num_partitions=1))
        table.create_index("id", config=BTree())
        return StoreLocation(kind="lancedb", url=url, collection="items", text_field="text")

    def insert(self, location: StoreLocation, rows: Rows) -> None:
        merge = open_table(location).merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(as_table(rows))

    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        open_table(location).delete(f"id IN ({', '.join(map(str, ids))})")

    def read(self, location: StoreLocation) -> dict[StoreId, tuple[np.ndarray, dict[str, Any]]]:
        found = open_table(location).to_arrow().select(["id", "text", "number", "json", "vector"])
        payloads = [json.loads(each) for each in found["json"].to_pylist()]
        for name in ("text", "number"):
            assert found[name].to_pylist() == [payload[name] for payload in payloads]
        return {
            id: (np.array(vector), payload)
            for id, vector, payload in zip(
                found["id"].to_pylist(), found["vector"].to_pylist(), payloads, strict=True
            )
        }
