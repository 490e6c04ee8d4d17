"""Reads and writes npy files: a header and the numbers. Pickled files are refused."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from app.errors import BadDtype, BadNpy, BadShape, EmptyVectors

#: the number types that a header may name: little-endian, big-endian, or of this machine
FLOAT_CODES = {"float16": "f2", "float32": "f4", "float64": "f8"}
NPY_DTYPES: dict[str, np.dtype[Any]] = {
    order + code: np.dtype(order + code) for order in "<>=" for code in FLOAT_CODES.values()
}

#: a type that an error may repeat
PLAIN = re.compile(r"[<>=|]?[A-Za-z][0-9]{0,4}")

#: the keys of a header, and the versions of the format
KEYS = ("descr", "fortran_order", "shape")
VERSIONS = (b"\x01\x00", b"\x02\x00", b"\x03\x00")

#: largest header: numpy writes 128 bytes, and parsing takes some microseconds for each byte
MAX_NPY_HEADER_BYTES = 1_024


@dataclass(frozen=True)
class Header:
    """What a file's header says.

    size           the bytes of the header
    columns_first  the file is in Fortran order
    """

    size: int
    dtype: np.dtype[Any]
    shape: tuple[int, int]
    columns_first: bool


def read(data: bytes | memoryview, field: str = "vectors") -> Tensor:
    """Returns the matrix of a file, without a copy if `data` is writable."""
    head = read_header(data, field)
    dtype, shape = head.dtype, head.shape
    size = shape[0] * shape[1] * dtype.itemsize
    if len(data) - head.size != size:
        raise BadNpy(
            f"The npy header declares {shape[0]} x {shape[1]} numbers of {dtype.name}, which take "
            f"{size} bytes. The body has {len(data) - head.size}.",
            field=field,
        )
    array = np.frombuffer(data, dtype, offset=head.size).reshape(
        shape, order="F" if head.columns_first else "C"
    )
    return as_tensor(array)


def read_header(data: bytes | memoryview, field: str = "vectors") -> Header:
    """Returns the header of a file that holds a matrix."""
    size = header_size(bytes(data[:12]), field)
    # Errors repeat no other values of the header: they can be of any size.
    descr, fortran, shape = _parse(bytes(data[:size]), field)
    if not isinstance(descr, str) or descr not in NPY_DTYPES:
        named = descr if isinstance(descr, str) and PLAIN.fullmatch(descr) else "another type"
        raise BadDtype(
            f"The npy file holds {named}. Send float16, float32 or float64.", field=field
        )
    if not isinstance(fortran, bool):
        raise BadNpy("The npy header's `fortran_order` must be True or False.", field=field)
    if not isinstance(shape, tuple) or len(shape) != 2:
        named = f"{len(shape)} dimensions" if isinstance(shape, tuple) else "no shape"
        raise BadShape(
            f"The npy file has {named}. Send a matrix of two: vectors and their numbers.",
            field=field,
        )
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise BadShape("The npy header's `shape` must be whole numbers.", field=field)
    if 0 in shape:
        raise EmptyVectors("The npy file holds no numbers. Send at least one vector.", field=field)
    return Header(size, NPY_DTYPES[descr], shape, fortran)


def _parse(head: bytes, field: str) -> list[Any]:
    """Returns the header's values by KEYS, unchecked."""
    try:
        about = ast.literal_eval(
            head[12 if head[6] > 1 else 10 :].decode("utf-8" if head[6] > 2 else "latin-1")
        )
        if type(about) is dict and about.keys() == set(KEYS):
            return [about[name] for name in KEYS]
    except Exception:  # noqa: S110 -- the parser's text repeats the client's bytes
        pass
    raise BadNpy(
        "The npy header is not a dictionary of `descr`, `fortran_order` and `shape`.", field=field
    )


def header_size(start: bytes, field: str = "vectors") -> int:
    """Returns where the numbers begin, from the first 12 bytes of a file."""
    if len(start) < 12 or not start.startswith(npy.MAGIC_PREFIX) or start[6:8] not in VERSIONS:
        raise BadNpy("The body is not an npy file. Write it with numpy.save.", field=field)
    wide = start[6] > 1
    size = (
        int.from_bytes(start[8:12], "little") + 12
        if wide
        else int.from_bytes(start[8:10], "little") + 10
    )
    if not 12 <= size <= MAX_NPY_HEADER_BYTES:
        raise BadNpy(
            f"The npy header must have 12 to {MAX_NPY_HEADER_BYTES} bytes, and has {size}.",
            field=field,
        )
    return size


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
