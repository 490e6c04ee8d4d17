"""The interface of a head, and what all kinds of heads share."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from app.errors import HeadTooLarge, InvalidHead

#: most bytes of a head's file, and of its tensors in float32
MAX_HEAD_BYTES = 64 * 2**20


@runtime_checkable
class HeadModel(Protocol):
    """A loaded head: a function from vectors to outputs. Several threads may call it at once."""

    #: dimension of the vectors
    dim: int
    #: numbers in one vector's outputs
    outputs: int
    #: memory of the loaded head
    nbytes: int

    def run(self, vectors: Float32[Tensor, "n d"]) -> Float32[Tensor, "n m"]:
        """Return the head's outputs: logits, probabilities or values, depending on its training.

        Raises InvalidHead.
        """
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to store, from which the head is built again."""
        ...


def probabilities(logits: Float[Tensor, "n c"]) -> Float32[Tensor, "n c"]:
    """Return the softmax of each row, computed in float64."""
    return torch.softmax(logits.double(), dim=1).float()


def clamp_to_float32(values: Float[Tensor, "n m"]) -> Float32[Tensor, "n m"]:
    """Return the values as float32, clamped to its range.

    Raises InvalidHead for rows with NaN or infinity.
    """
    wrong = ~values.isfinite().all(dim=1)
    if bool(wrong.any()):
        raise InvalidHead(
            "The head returns NaN or infinity for these rows. Check the vectors and the head.",
            field="head",
            rows=wrong.nonzero().flatten().tolist(),
        )
    limit = torch.finfo(torch.float32).max
    return values.clamp(-limit, limit).float()


def check_size(data: bytes, field: str) -> None:
    """Raises HeadTooLarge for a file of more than MAX_HEAD_BYTES."""
    if len(data) > MAX_HEAD_BYTES:
        raise HeadTooLarge(
            f"The head's file has {len(data)} bytes; the limit is {MAX_HEAD_BYTES}. "
            "Send a smaller head.",
            field=field,
            limit=MAX_HEAD_BYTES,
        )
