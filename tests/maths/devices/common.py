"""What the cases of every room share: a case computes one function of `app.maths` from tensors that
`on` puts on a device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.maths.clouds import normal, rotation

On = Callable[[Any], Any]
Case = Callable[[On], object]

SOURCE_DIM, TARGET_DIM = 10, 8


def pair_of_clouds(items: int, *, noise: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(items, 10) and (items, 8) float32 rows of two encoders of the same items."""
    x = normal(seed, items, SOURCE_DIM) * torch.linspace(2.0, 0.5, SOURCE_DIM) + 0.5
    y = (x @ rotation(1, SOURCE_DIM))[:, :TARGET_DIM] + noise * normal(2, items, TARGET_DIM) - 1.0
    return x.float(), y.float()


def moved(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """The value, with every tensor in it moved; data classes, tuples, lists and mappings are made
    again.
    """
    if isinstance(value, Tensor):
        return move(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: moved(getattr(value, field.name), move)
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    if isinstance(value, tuple):
        parts = [moved(part, move) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [moved(part, move) for part in value]
    if isinstance(value, Mapping):
        return {name: moved(part, move) for name, part in value.items()}
    return value


def plain(value: Any) -> Any:
    """The value as nested tuples of numbers, texts and tensors of the CPU."""
    if isinstance(value, Tensor):
        return value.cpu().clone()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, BaseException):
        return type(value).__name__, str(value), getattr(value, "rows", None)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(
            (field.name, plain(getattr(value, field.name))) for field in dataclasses.fields(value)
        )
    if isinstance(value, Mapping):
        return tuple((name, plain(part)) for name, part in value.items())
    if isinstance(value, (tuple, list, Iterator)):
        return tuple(plain(part) for part in value)
    return value


def assert_same(result: Any, expected: Any, place: str = "result") -> None:
    """Compare two plain values; numbers may differ by the rounding of their type."""
    if isinstance(expected, tuple):
        assert isinstance(result, tuple), place
        assert len(result) == len(expected), place
        for index, (part, other) in enumerate(zip(result, expected, strict=True)):
            assert_same(part, other, f"{place}[{index}]")
    elif isinstance(expected, (Tensor, float)):
        torch.testing.assert_close(
            result, expected, equal_nan=True, msg=lambda text: f"{place}: {text}"
        )
    else:
        assert result == expected, place


def raised(call: Callable[[], object]) -> BaseException:
    """The exception that a call raises."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")
