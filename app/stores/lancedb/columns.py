"""The columns of a LanceDB table: ids, vectors, and indexes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from lancedb import index as kinds
from numpy.typing import NDArray

from app.errors import InvalidOption, StoreChanged, StoreUnsupported
from app.stores.port import Metric, StoreId, StoreLocation, StoreVectors

#: columns and tables that a migration creates
OWN_NAME = re.compile(r"anchorage_([0-9a-f]{8})")

#: types of numbers in vectors
FLOATS = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}


def is_vector(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind)) and kind.value_type in FLOATS


def find_id(location: StoreLocation, schema: pa.Schema) -> str:
    """Return the column of ids. Raises StoreUnsupported if there is none that can be used."""
    id = location.id_field or "id"
    if id not in schema.names:
        known = ", ".join(f"`{name}`" for name in schema.names)
        raise StoreUnsupported(
            f"The table has no column `{id}` of ids. Name one of {known}.", field="id_field"
        )
    kind = schema.field(id).type
    if not (
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    ):
        raise StoreUnsupported(
            f"The column `{id}` of ids has the type {kind}. Use integers or text.",
            field="id_field",
        )
    return id


def find_vector(location: StoreLocation, schema: pa.Schema) -> str:
    """Return the column of vectors."""
    name = location.vector_field
    if name is None:
        own = [field.name for field in schema if is_vector(field.type)]
        choice = [each for each in own if not OWN_NAME.search(each)]
        if len(choice) != 1:
            raise StoreUnsupported(
                f"The table has {len(choice)} columns of vectors. Name one in `vector_field`.",
                field="vector_field",
            )
        name = choice[0]
    if name not in schema.names:
        raise StoreChanged(f"The table has no column `{name}`. Somebody deleted or renamed it.")
    kind = schema.field(name).type
    if not is_vector(kind):
        raise StoreUnsupported(
            f"The column `{name}` has the type {kind}. Only lists of a fixed size of float16, "
            "float32 or float64 can be translated; binary and multi-vectors cannot.",
            field="vector_field",
        )
    return name


def to_numpy(column: pa.ChunkedArray) -> StoreVectors:
    """Return the vectors (n, d) of rows that have one, as float32."""
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    vectors: StoreVectors = flat.astype(np.float32, copy=False)
    return vectors.reshape(-1, column.type.list_size)


def to_arrow(vectors: NDArray[Any], kind: pa.DataType, missing: pa.Array | None = None) -> pa.Array:
    """Return vectors (n, d) as a column of this type, with null where one is missing."""
    numbers = np.ascontiguousarray(vectors, FLOATS[kind.value_type])
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), type=kind, mask=missing)


def id_filter(column: str, ids: Sequence[StoreId]) -> str:
    """Return a condition in SQL: the rows with these ids."""
    values = [
        str(int(id)) if isinstance(id, int | np.integer) else "'" + id.replace("'", "''") + "'"
        for id in ids
    ]
    return f"{quoted(column)} IN ({', '.join(values)})"


def quoted(column: str) -> str:
    """Return the name of a column in SQL."""
    return "`" + column.replace("`", "``") + "`"


#: LanceDB's distances
DISTANCES: dict[str, Metric] = {"cosine": "cosine", "dot": "dot", "l2": "euclidean"}


def find_index(table: Any, column: str) -> Any | None:
    """Return the configuration of the index of a column, or None."""
    found = [each for each in table.list_indices() if list(each.columns) == [column]]
    return found[0] if found else None


def distance_of(table: Any, column: str, option: Any) -> str:
    """Return the distance of a column's index, else of the option `distance`, else `l2`."""
    index = find_index(table, column)
    if index is not None:
        stats = table.index_stats(index.name)
        if stats is not None and stats.distance_type in DISTANCES:
            return str(stats.distance_type)
    if option is not None and option not in DISTANCES:
        raise InvalidOption(
            f"`distance` of the options is {option!r}. It is one of {', '.join(DISTANCES)}.",
            field="options",
        )
    return str(option or "l2")


def build_like(table: Any, old: str, new: str) -> None:
    """Build an index of the column `new` like that of `old`, if `old` has one."""
    index = find_index(table, old)
    if index is not None:
        kind = getattr(kinds, index.index_type.replace("IvfHnsw", "Hnsw"))
        table.create_index(new, config=kind(distance_type=distance_of(table, old, None)))
