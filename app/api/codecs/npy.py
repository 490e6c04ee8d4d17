"""npy, numpy's own format: a header and the numbers. Never pickled: the header is read, and the numbers are taken as they lie."""

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

MEDIA = "application/x-npy"

#: what a header may call the numbers: little-endian, big-endian, and of this machine
FLOATS = {"float16": "f2", "float32": "f4", "float64": "f8"}
DTYPES: dict[str, np.dtype[Any]] = {
    order + code: np.dtype(order + code) for order in "<>=" for code in FLOATS.values()
}

#: a type that may be shown
PLAIN = re.compile(r"[<>=|]?[A-Za-z][0-9]{0,4}")

#: what a header has
KEYS = ("descr", "fortran_order", "shape")
VERSIONS = (b"\x01\x00", b"\x02\x00", b"\x03\x00")

#: numpy writes 128 bytes, and Python's parser takes some microseconds for each byte of the worst
MOST_HEADER_BYTES = 1_024


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
        raise BadNpy(
            f"{list(shape)} numbers of {dtype.name} are {size} bytes, got {len(data) - found.size}",
            field=field,
        )
    array = np.frombuffer(data, dtype, offset=found.size).reshape(
        shape, order="F" if found.columns_first else "C"
    )
    return as_tensor(array)


def read_header(data: bytes | memoryview, field: str = "vectors") -> Header:
    """What a file's header says. Raises BadNpy, BadDtype, BadShape, EmptyVectors."""
    size = header_size(bytes(data[:12]), field)
    # Values of the header are not shown as they are: they are of any size, and those of Python show addresses of memory.
    descr, fortran, shape = _parse(bytes(data[:size]), field)
    if not isinstance(descr, str) or descr not in DTYPES:
        named = descr if isinstance(descr, str) and PLAIN.fullmatch(descr) else "something else"
        raise BadDtype(f"expected {', '.join(FLOATS)}, got {named}", field=field)
    if not isinstance(fortran, bool):
        raise BadNpy("this is no npy file: fortran_order is True or False", field=field)
    if not isinstance(shape, tuple) or len(shape) != 2:
        named = f"a shape of {len(shape)} numbers" if isinstance(shape, tuple) else "no shape"
        raise BadShape(f"expected a matrix of vectors, got {named}", field=field)
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise BadShape(
            "expected a matrix of vectors, got a shape that is not two whole numbers", field=field
        )
    if 0 in shape:
        raise EmptyVectors("expected at least one vector of at least one number", field=field)
    return Header(size, DTYPES[descr], (shape[0], shape[1]), fortran)


def _parse(head: bytes, field: str) -> list[Any]:
    """The header's three values, whatever they are. Raises BadNpy."""
    try:
        about = ast.literal_eval(
            head[12 if head[6] > 1 else 10 :].decode("utf-8" if head[6] > 2 else "latin-1")
        )
        if type(about) is dict and about.keys() == set(KEYS):
            return [about[name] for name in KEYS]
    except Exception:  # noqa: S110 - whatever the parser raises, its text shows the client's expression, and is not told
        pass
    raise BadNpy(
        "this is no npy file: its header is no dictionary of descr, fortran_order and shape",
        field=field,
    )


def header_size(start: bytes, field: str = "vectors") -> int:
    """Where the numbers begin, as the first twelve bytes of a file tell it. Raises BadNpy."""
    if len(start) < 12 or not start.startswith(npy.MAGIC_PREFIX) or start[6:8] not in VERSIONS:
        raise BadNpy("this is no npy file", field=field)
    wide = start[6] > 1
    size = (
        int.from_bytes(start[8:12], "little") + 12
        if wide
        else int.from_bytes(start[8:10], "little") + 10
    )
    if not 12 <= size <= MOST_HEADER_BYTES:
        raise BadNpy(
            f"this is no npy file: its header has more than {MOST_HEADER_BYTES} bytes", field=field
        )
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
    if not (
        array.flags.writeable
        and array.flags.aligned
        and array.flags.c_contiguous
        and array.dtype == native
    ):
        array = np.array(array, dtype=native, order="C")
    return torch.from_numpy(array)
