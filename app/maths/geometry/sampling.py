"""Random samples of a pool's items."""

from __future__ import annotations

import torch

from app.errors import InvalidOption


def check_size(size: int, pool: int) -> None:
    """Raise InvalidOption unless 1 <= size <= pool."""
    if not 1 <= size <= pool:
        raise InvalidOption(
            f"`size` must lie between 1 and the pool's {pool} items, got {size}.", field="size"
        )


def draw_uniformly(pool: int, *, size: int, seed: int) -> list[int]:
    """`size` of `pool` indices without repetition; every subset is equally likely. Raises
    InvalidOption.
    """
    check_size(size, pool)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(pool, generator=generator)[:size].tolist()
