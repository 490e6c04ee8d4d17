"""Synthetic embeddings that cost as much as real ones: clusters, a decaying spectrum, a mean that
is not zero, and noise.

Banking77 by all-MiniLM-L6-v2 (k = 768, unit anchors) has singular values 8.5, 5.7, 4.1, 2.4, 1.0,
.5 at places 1, 4, 11, 31, 101, 201, and at delta 0.6 subspaces of 131 to 141 anchors; these have
7.7, 6.3, 4.4, 2.3, .9, .4, and 146 to 154.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Matrix = NDArray[np.float32]

LATENTS, CLUSTERS = 512, 77
NOISE = 0.02


def embeddings(rows: int, dims: Sequence[int]) -> list[Matrix]:
    """The same items by encoders of these dimensions (rows, d): rotations of the same numbers, each
    with its own noise.
    """
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLUSTERS, LATENTS, generator=generator)[
        torch.randint(CLUSTERS, (rows,), generator=generator)
    ]
    spread = (1 + torch.arange(LATENTS) / 10) ** -0.9
    latent = (centres + torch.randn(rows, LATENTS, generator=generator)) * spread / 2**0.5
    found = []
    for dim in dims:
        kept = min(dim, LATENTS)
        rotation, _ = torch.linalg.qr(torch.randn(dim, kept, generator=generator))
        picture = latent[:, :kept] @ rotation.T
        picture += NOISE * torch.randn(rows, dim, generator=generator)
        picture += torch.randn(dim, generator=generator) / dim**0.5
        found.append(picture.numpy())
    return found
