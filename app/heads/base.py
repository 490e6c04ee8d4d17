"""What a head is to the rest of the service."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from app.errors import HeadTooLarge, InvalidHead

#: bytes of a head's file, and of its tensors
MAX_HEAD_BYTES = 64 * 2**20


@runtime_checkable
class HeadModel(Protocol):
    """A loaded head: a function from vectors to numbers. May be called from several threads at once."""

    #: numbers that it reads
    dim: int
    #: numbers that it answers
    outputs: int
    #: memory that it takes
    nbytes: int

    def run(self, vectors: Float32[Tensor, "n d"]) -> Float32[Tensor, "n m"]:
        """What the head answers: logits, probabilities or values, as it was trained. Raises HeadTooSlow, InvalidHead."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Everything that it takes to make it again, to be stored."""
        ...


def probabilities(logits: Float[Tensor, "n c"]) -> Float32[Tensor, "n c"]:
    """The softmax of each row, taken in float64."""
    return torch.softmax(logits.double(), dim=1).float()


def clamp_to_float32(values: Float[Tensor, "n m"]) -> Float32[Tensor, "n m"]:
    """Values as float32, those beyond its range at its end. Raises InvalidHead for rows that hold NaN or infinity."""
    wrong = ~values.isfinite().all(dim=1)
    if bool(wrong.any()):
        raise InvalidHead(
            "the head answers NaN or infinity",
            field="head",
            rows=wrong.nonzero().flatten().tolist(),
        )
    limit = torch.finfo(torch.float32).max
    return values.clamp(-limit, limit).float()


def check_size(data: bytes, field: str) -> None:
    """Raises HeadTooLarge."""
    if len(data) > MAX_HEAD_BYTES:
        raise HeadTooLarge(
            f"a head's file may have {MAX_HEAD_BYTES} bytes, got {len(data)}",
            field=field,
            limit=MAX_HEAD_BYTES,
        )
