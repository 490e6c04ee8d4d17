"""Relative vectors on a grid that is the same in every space, and what that guarantees.

With b bits: M = 2^(b-1) - 1, step D = 1 / M, code(r) = floor(M r + 1/2) in -M..M, and Q(r) = code(r) / M, for a cosine r in
[-1, 1]. Zero is on the grid, so that a vector at the mean stays one. For cosines r and s, of one vector in two spaces say:

1. Accuracy. |Q(r) - r| <= D/2. So the k numbers of a row move by at most sqrt(k) D/2 together, and what a decoder (k, d) makes
   of them, before it is renormalised, by at most sqrt(k) D/2 times the decoder's largest singular value.
2. Bounded distortion. |r - s| <= e implies |code(r) - code(s)| <= ceil(e / D), and no smaller bound holds for all r and s.
   Proof: with m = ceil(e / D) is M r <= M s + m, floor(x + 1/2) is monotone, and floor(x + m + 1/2) = floor(x + 1/2) + m.
   (Rounding halves to the even neighbour, or away from zero, is not equivariant: a step apart can become two codes apart.)
3. Invariance. Where r is farther than e from the nearest border between two codes, code(s) = code(r) for all s within e of it.
4. Angles. A distortion of the space that changes the angle between vector and anchor, seen from the anchors' mean, by at most t
   radians has e <= t, as a cosine changes no faster than its angle; one that turns each of the two by at most t has e <= 2 t.

2 and 3 hold exactly for the float32 numbers that come in, as M r has at most 39 bits and is computed in float64; 1 up to the
rounding of the dtype in which a level is written, which `bound` includes.

Moschella et al. 2023, appendix A.3, quantise the absolute embeddings instead: agglomerative clusters at a distance threshold,
each vector replaced by its cluster's centroid. That is invariant to whatever moves no vector into another cluster, which no
bound on a distortion can promise, as some vectors lie at a border; a vector that was not clustered has no code; and items of one
cluster can no longer be told apart. It is measured in `benchmarks/anchor_strategies.py`, and not served.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from app.errors import InvalidOption

#: below 2 there is no grid with a zero, above 16 a code is no int16
FEWEST_BITS, MOST_BITS = 2, 16

#: what writing a level in an answer's dtype costs at most: half the distance of its numbers below 1; float16 by way of float32
DTYPE_ROUNDING = {"float32": 2.0**-25, "float16": 2.0**-12 + 2.0**-25}

#: numbers that are float64 at once, in the core's cache
NUMBERS_PER_STEP = 2**17


def largest_code(bits: int) -> int:
    """M = 2^(bits - 1) - 1; codes lie in -M..M. Raises InvalidOption unless 2 <= bits <= 16."""
    if not FEWEST_BITS <= bits <= MOST_BITS:
        raise InvalidOption(
            f"bits must lie between {FEWEST_BITS} and {MOST_BITS}, got {bits}", field="bits"
        )
    return (1 << (bits - 1)) - 1


def step_size(bits: int) -> float:
    """D = 1 / M, the distance between neighbouring levels; a cosine's unit. Raises InvalidOption."""
    return 1 / largest_code(bits)


def error_bound(bits: int, *, dtype: str = "float32") -> float:
    """D/2 + the rounding of `dtype`: no cosine in [-1, 1] is farther from its level as it is written. Raises InvalidOption."""
    return step_size(bits) / 2 + DTYPE_ROUNDING[dtype]


def keeps_levels(bits: int, dtype: str) -> bool:
    """Whether levels written as `dtype` stay apart: a level's code is round(M value) then. Raises InvalidOption."""
    return DTYPE_ROUNDING[dtype] < step_size(bits) / 2


def quantise_in_place(relative: Float32[Tensor, "n k"], *, bits: int) -> None:
    """Replace cosines r (n, k), finite, by Q(r), a few rows at a time. Raises InvalidOption."""
    most = largest_code(bits)
    count = max(1, NUMBERS_PER_STEP // relative.shape[1])
    for start in range(0, len(relative), count):
        rows = relative[start : start + count]
        rows.copy_(levels(rows, most).div_(most))


def levels(relative: Float[Tensor, "n k"], most: int) -> Tensor:
    """Codes floor(M r + 1/2) (n, k) as float64; what rounding has put outside [-1, 1] counts as its end."""
    return relative.to(torch.float64, copy=True).mul_(most).add_(0.5).floor_().clamp_(-most, most)
