"""Reads and writes npy files: a header and the numbers. Pickled files are refused."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from app.errors import BadDtype, BadNpy, BadShape, EmptyVectors

#: the number types of a file, in either byte order
FLOAT_CODES = {"float16": "f2", "float32": "f4", "float64": "f8"}

#: the versions of the format; the third differs from the second in characters that no matrix needs
READERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
    (3, 0): npy.read_array_header_2_0,
}

#: largest header: numpy writes 128 bytes, and parsing takes some microseconds for each byte
MAX_NPY_HEADER_BYTES = 1_024


def read(data: bytes | memoryview, field: str = "vectors") -> Tensor:
    """Returns the matrix of a file, without a copy if `data` is writable."""
    most = MAX_NPY_HEADER_BYTES + npy.MAGIC_LEN + 4
    start = BytesIO(bytes(data[:most]).ljust(most))  # of a cut header, its type is still told
    try:
        read_header = READERS[npy.read_magic(start)]
        shape, in_columns, dtype = read_header(start, MAX_NPY_HEADER_BYTES)
    except Exception:  # a parser's text repeats the client's bytes
        raise BadNpy(
            f"The body is not an npy file with a header of at most {MAX_NPY_HEADER_BYTES} bytes. "
            "Write it with numpy.save.",
            field=field,
        ) from None
    if dtype.name not in FLOAT_CODES:
        raise BadDtype(
            "The npy file holds no floats. Send float16, float32 or float64.", field=field
        )
    if len(shape) != 2 or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise BadShape(
            "The npy file holds no matrix. Send one of two dimensions: vectors and their numbers.",
            field=field,
        )
    if 0 in shape:
        raise EmptyVectors("The npy file holds no numbers. Send at least one vector.", field=field)
    size, rest = shape[0] * shape[1] * dtype.itemsize, len(data) - start.tell()
    if rest != size:
        raise BadNpy(
            f"The npy header declares {shape[0]} x {shape[1]} numbers of {dtype.name}, which take "
            f"{size} bytes. The body has {max(rest, 0)}.",
            field=field,
        )
    numbers = np.frombuffer(data, dtype, offset=start.tell())
    return as_tensor(numbers.reshape(shape, order="F" if in_columns else "C"))


def header(rows: int, dim: int, dtype: str) -> bytes:
    """Returns the header of a file of rows x dim little-endian numbers."""
    file = BytesIO()
    descr = np.dtype(dtype).newbyteorder("<").str
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (rows, dim)})
    return file.getvalue()


def as_tensor(array: np.ndarray[tuple[int, ...], np.dtype[np.floating]]) -> Tensor:
    """Returns a tensor, without a copy if the array is aligned, writable, native and in C order."""
    native = array.dtype.newbyteorder("=")
    if not (
        array.flags.writeable
        and array.flags.aligned
        and array.flags.c_contiguous
        and array.dtype == native
    ):
        array = np.array(array, dtype=native, order="C")
    return torch.from_numpy(array)
