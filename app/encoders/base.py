"""What an encoder is to the rest of the service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class EncoderModel(Protocol):
    """A loaded model. `encode` may be called from several threads."""

    dim: int

    def encode(self, inputs: Sequence[str]) -> Tensor:
        """Vectors (n, dim), float32, in the model's own units, row i of input i."""
        ...
