"""Reads the vectors that `anchorage quickstart` makes anchors of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

#: most anchors of a quickstart: more take longer and gain little
MAX_ANCHORS = 5_000

#: rows of a Parquet file that are read at a time
ROWS_READ_AT_ONCE = 8_192

SUFFIXES = (".npy", ".parquet")


def read_vectors(place: Path) -> NDArray[np.float32]:
    """Return the rows of a file, or of all files of a folder in the order of their names.

    Raises typer.BadParameter.
    """
    if not place.exists():
        raise typer.BadParameter(f"There is no file or folder {place}.")
    files = [place] if place.is_file() else sorted(place.iterdir())
    files = [file for file in files if file.suffix in SUFFIXES]
    if not files:
        raise typer.BadParameter(f"{place} has no npy and no Parquet file.")
    parts = [_read_file(file) for file in files]
    dims = sorted({part.shape[1] for part in parts})
    if len(dims) > 1:
        raise typer.BadParameter(
            f"The files of {place} have vectors of {dims[0]} and of {dims[-1]} numbers."
        )
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(wrong):
        raise typer.BadParameter(f"{place} has NaN or infinity in row {wrong[0]}.")
    return rows


def _read_file(file: Path) -> NDArray[np.float32]:
    try:
        if file.suffix == ".npy":
            rows = np.load(file, mmap_mode="r", allow_pickle=False)
        else:
            rows = _read_parquet(file)
        rows = np.atleast_2d(rows).astype(np.float32, copy=False)
    except (OSError, ValueError, TypeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from None
    if rows.ndim != 2 or not rows.size:
        raise typer.BadParameter(f"{file} must hold one vector in each row.")
    return rows


def _read_parquet(file: Path) -> NDArray[np.float32]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as source:
        lists = [
            field.name
            for field in source.schema_arrow
            if pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type)
        ]
        if len(lists) != 1:
            raise ValueError(f"it must have one column of float lists, and has {len(lists)}")
        batches = source.iter_batches(ROWS_READ_AT_ONCE, columns=lists)
        return np.concatenate([_rows_of(batch.column(0)) for batch in batches])


def _rows_of(column: pa.Array) -> NDArray[np.float32]:
    """Return lists as rows. Raises ValueError unless all have one length and numbers."""
    import pyarrow.compute as pc

    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    numbers = column.flatten()
    if len(lengths) != 1 or column.null_count or numbers.null_count:
        raise ValueError("its lists must have one length, and no nulls")
    flat = np.asarray(numbers.to_numpy(zero_copy_only=False), np.float32)
    return flat.reshape(len(column), -1)


def spread(rows: NDArray[np.float32], most: int) -> NDArray[np.float32]:
    """Return at most `most` rows, evenly spread over all."""
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int))
    return np.asarray(rows[chosen])
