"""Vectors on the wire: numpy arrays, torch tensors and Arrow columns, to JSON and npy and back."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

Floats: TypeAlias = NDArray[np.floating[Any]]
Float32s: TypeAlias = NDArray[np.float32]

#: What every method takes as vectors (n, d): also `torch.Tensor` and float-list columns of Arrow.
VectorsLike: TypeAlias = (
    "Floats | Sequence[Sequence[float]] | torch.Tensor | pa.Array | pa.ChunkedArray"
)

_WIRE_TYPES = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}


def as_array(vectors: VectorsLike) -> Floats:
    """Return vectors as an array (n, d) of float16, float32 or float64.

    Raises ValueError for another shape, and TypeError for other types of numbers.
    """
    if hasattr(vectors, "detach"):  # a tensor, on any device
        tensor: Any = vectors.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            tensor = tensor.float()
        vectors = tensor.numpy()
    elif hasattr(vectors, "to_numpy") and hasattr(vectors, "type"):  # a column of Arrow
        vectors = _from_arrow(vectors)
    array: NDArray[Any] = np.asarray(vectors)
    if array.dtype.name not in _WIRE_TYPES:
        if array.dtype.kind not in "iuf":
            raise TypeError(f"Vectors must be numbers, and these are {array.dtype}.")
        array = array.astype(np.float32)
    if array.ndim != 2:
        raise ValueError(f"Vectors must have the shape (n, d), and these have {array.shape}.")
    return array


def _from_arrow(column: Any) -> Floats:
    import pyarrow as pa
    import pyarrow.compute as pc

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    lengths = set(pc.list_value_length(array).to_pylist())
    if len(lengths) != 1 or lengths <= {None, 0}:
        raise ValueError("The Arrow column must hold lists of one length, without nulls.")
    floats: Floats = array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), -1)
    return floats


def to_json(vectors: VectorsLike) -> dict[str, Any]:
    """Return vectors as a JSON member: dtype, shape and base64."""
    array = as_array(vectors)
    name = array.dtype.name
    data = np.ascontiguousarray(array, dtype=_WIRE_TYPES[name])
    return {
        "dtype": name,
        "shape": list(array.shape),
        "base64": base64.b64encode(data.tobytes()).decode(),
    }


def from_json(member: Any) -> Float32s:
    """Return the float32 array (n, d) of a JSON member, in either form."""
    if isinstance(member, dict):
        data = base64.b64decode(member["base64"])
        array = np.frombuffer(data, _WIRE_TYPES[member["dtype"]]).reshape(member["shape"])
        return array.astype(np.float32)
    return np.asarray(member, dtype=np.float32)


def to_npy(vectors: VectorsLike) -> bytes:
    """Return vectors as a npy file."""
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(as_array(vectors)), allow_pickle=False)
    return file.getvalue()


def from_npy(data: bytes) -> Float32s:
    """Return the float32 array of a npy file."""
    array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array.astype(np.float32, copy=False)
