"""Whole numbers that an ONNX graph computes from the shapes of its tensors, told in advance where onnx's inference does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: results of more numbers are no shapes
LARGEST = 1_024
INT64 = 7


def _div(a: Array, b: Array) -> Array | None:
    """Rounded down, which is ONNX's rounding toward zero only without signs."""
    return np.asarray(a // b) if (a >= 0).all() and (b > 0).all() else None


def _mod(a: Array, b: Array) -> Array | None:
    return np.asarray(a % b) if (a >= 0).all() and (b > 0).all() else None


def _slice(values: Array, start: Array, end: Array, axes: Array | None = None, steps: Array | None = None) -> Array | None:
    if start.size != 1 or end.size != 1 or (steps is not None and steps.tolist() != [1]):
        return None
    return values[int(start.item()) : int(end.item())]


def _reshape(values: Array, shape: Array) -> Array | None:
    return values.reshape(shape.tolist()) if (shape != 0).all() else None


#: of flat arrays and single numbers
OPS: dict[str, Callable[..., Array | None]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _div,
    "Mod": _mod,
    "Equal": np.equal,
    "Where": np.where,
    "Identity": lambda values: values,
    "Reshape": _reshape,
    "Slice": _slice,
    "Gather": lambda values, index: values[index],
    "Concat": lambda *parts: np.concatenate(parts),
    "Squeeze": lambda values, axes=None: values.reshape(()) if values.size == 1 else None,
    "Unsqueeze": lambda values, axes=None: values.reshape(1) if values.ndim == 0 else None,
}


def value(op: str, has: Mapping[str, Any], inputs: list[Array | None], shape: tuple[int, ...] | None) -> Array | None:
    """The output of a node with those attributes and inputs, the first of that shape; None where it is not told here."""
    if op == "Shape":
        return None if shape is None else np.array(shape[has.get("start", 0) : has.get("end")], dtype=np.int64)
    given = [array for array in inputs if array is not None]
    if len(given) != len(inputs) or any(array.ndim > 1 or array.dtype.kind == "f" for array in given):
        return None
    if op == "Cast":
        return given[0] if has.get("to") == INT64 and given[0].dtype == np.int64 else None
    if op == "ConstantOfShape":
        return _filled(has, given[0])
    if op not in OPS:
        return None
    try:
        with np.errstate(all="ignore"):
            answer = OPS[op](*given)
            answer = None if answer is None else np.asarray(answer)  # numpy answers a number where the array would have no axes
    except (IndexError, ValueError, TypeError, OverflowError):
        return None
    return answer if answer is not None and answer.ndim <= 1 and answer.size <= LARGEST else None


def _filled(has: Mapping[str, Any], shape: Array) -> Array | None:
    """A short list of one whole number."""
    tensor = has.get("value")
    if shape.size != 1 or not 0 < shape.item() <= LARGEST or tensor is None or tensor.data_type != INT64:
        return None
    from onnx import numpy_helper

    return np.full(shape.item(), numpy_helper.to_array(tensor).item(), dtype=np.int64)
