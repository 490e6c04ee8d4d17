"""Tables of Arrow and Parquet, where pyarrow is installed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from anchorage_client.results import Translation

if TYPE_CHECKING:
    import pyarrow as pa


def vector_column(table: pa.Table, name: str | None) -> str:
    """Return the name of the column of vectors: `name`, or else the only one of float lists.

    Raises ValueError.
    """
    import pyarrow as pa

    found = [
        each.name
        for each in table.schema
        if isinstance(each.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
        and pa.types.is_floating(each.type.value_type)
    ]
    if name is None and len(found) != 1:
        raise ValueError(f"Name the `column` of vectors: {found} hold lists of floats.")
    return found[0] if name is None else name


def with_answer(table: pa.Table, column: str, answer: Translation) -> pa.Table:
    """Return a table with the answer's vectors in place of its vectors, and the other columns.

    The column `anchorage_flag` has the last flag of each row, and the metadata the translator.
    """
    import pyarrow as pa

    rows, dim = answer.vectors.shape
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(answer.vectors.ravel()), dim)
    flags: list[str | None] = [None] * rows
    for each in answer.flags:
        flags[each["row"]] = each["code"]
    about = {"method": answer.method, "translator": answer.translator, "options": answer.options}
    texts = {
        f"anchorage.{name}": value if isinstance(value, str) else json.dumps(value)
        for name, value in about.items()
        if value
    }
    place = table.schema.get_field_index(column)
    table = table.set_column(place, column, vectors)
    table = table.append_column("anchorage_flag", pa.array(flags, pa.string()))
    return table.replace_schema_metadata({**(table.schema.metadata or {}), **texts})
