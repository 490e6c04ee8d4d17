"""Random data of the tests of maths, float64 by default; equal seeds give equal bits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def rotation(seed: int, dim: int) -> Tensor:
    return torch.linalg.qr(normal(seed, dim, dim)).Q


def cos(a: np.ndarray, b: np.ndarray) -> float:
    """The cosine of two vectors, by the definition."""
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
