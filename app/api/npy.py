"""npy, numpy's own format: a header and the numbers. Never pickled: the header is read, and the numbers are taken as they lie."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from app.errors import BadDtype, BadNpy, BadShape, EmptyVectors

MEDIA = "application/x-npy"

#: kinds of floats that torch has, by their size in bytes
FLOATS = {2: "float16", 4: "float32", 8: "float64"}

#: a header is a short text; numpy itself refuses longer ones
MOST_HEADER_BYTES = 10_000


@dataclass(frozen=True)
class Header:
    """size: its own, in bytes; columns_first: the matrix is written column by column."""

    size: int
    dtype: np.dtype[Any]
    shape: tuple[int, int]
    columns_first: bool


def read(data: bytes | memoryview, field: str = "vectors") -> Tensor:
    """The matrix of a file, where it lies if its bytes may be written to. Raises BadNpy, BadDtype, BadShape, EmptyVectors."""
    found = read_header(data, field)
    dtype, shape = found.dtype, found.shape
    size = shape[0] * shape[1] * dtype.itemsize
    if len(data) - found.size != size:
        raise BadNpy(f"{list(shape)} numbers of {dtype.name} are {size} bytes, got {len(data) - found.size}", field=field)
    array = np.frombuffer(data, dtype, offset=found.size).reshape(shape, order="F" if found.columns_first else "C")
    return as_tensor(array)


def read_header(data: bytes | memoryview, field: str = "vectors") -> Header:
    """What a file's header says. Raises BadNpy, BadDtype, BadShape, EmptyVectors."""
    start = bytes(data[: header_size(bytes(data[:12]), field)])
    file = BytesIO(start)
    try:
        version = npy.read_magic(file)
        read_array_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_array_header(file, max_header_size=MOST_HEADER_BYTES)
    except Exception as error:  # numpy evaluates a text of the client's: what that raises has no end
        raise BadNpy(f"this is no npy file: {str(error)[:200]}", field=field) from None
    if dtype.kind != "f" or dtype.itemsize not in FLOATS:
        raise BadDtype(f"expected {', '.join(FLOATS.values())}, got {str(dtype)[:50]}", field=field)
    if len(shape) != 2 or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise BadShape(f"expected a matrix of vectors, got shape {_shown(shape)}", field=field)
    if 0 in shape:
        raise EmptyVectors("expected at least one vector of at least one number", field=field)
    return Header(len(start), dtype, (shape[0], shape[1]), fortran)


def _shown(shape: tuple[int, ...]) -> str:
    """A shape for people; Python writes no integers of thousands of digits."""
    return str([size if abs(size) < 2**64 else "..." for size in shape[:8]])


def header_size(start: bytes, field: str = "vectors") -> int:
    """Where the numbers begin, as the first twelve bytes of a file tell it. Raises BadNpy."""
    if len(start) < 12 or not start.startswith(npy.MAGIC_PREFIX):
        raise BadNpy("this is no npy file", field=field)
    wide = start[len(npy.MAGIC_PREFIX)] > 1
    size = int.from_bytes(start[8:12], "little") + 12 if wide else int.from_bytes(start[8:10], "little") + 10
    if size > MOST_HEADER_BYTES:
        raise BadNpy("this is no npy file: its header is too long", field=field)
    return size


def header(rows: int, dim: int, dtype: str) -> bytes:
    """What stands before rows x dim little-endian numbers."""
    file = BytesIO()
    descr = np.dtype(dtype).newbyteorder("<").str
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (rows, dim)})
    return file.getvalue()


def as_tensor(array: np.ndarray[tuple[int, ...], np.dtype[np.floating]]) -> Tensor:
    """A tensor of the array's own memory, if torch can use it: aligned, writable, native, row by row."""
    native = array.dtype.newbyteorder("=")
    if not (array.flags.writeable and array.flags.aligned and array.flags.c_contiguous and array.dtype == native):
        array = np.array(array, dtype=native, order="C")
    return torch.from_numpy(array)
