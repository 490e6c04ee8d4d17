"""Relative vectors on a grid that is the same in every space, and the guarantees of that grid.

With b bits: M = 2^(b-1) - 1, step D = 1 / M, code(r) = floor(M r + 1/2) in -M..M, and Q(r) =
code(r) / M, for a cosine r in [-1, 1]. Zero is on the grid, so a vector at the mean keeps its
zeros. For cosines r and s, for example of one vector in two spaces:

1. Accuracy. |Q(r) - r| <= D/2. So the k numbers of a row move by at most sqrt(k) D/2 together. A
   decoder (k, d) turns that into at most sqrt(k) D/2 times its largest singular value, before
   renormalisation.
2. Bounded distortion. |r - s| <= e implies |code(r) - code(s)| <= ceil(e / D), and no smaller bound
   holds for all r and s. Proof: with m = ceil(e / D), M r <= M s + m; floor(x + 1/2) is monotone,
   and floor(x + m + 1/2) = floor(x + 1/2) + m. (Rounding of halves to the even neighbour, or away
   from zero, is not equivariant: values one step apart can get codes two apart.)
3. Invariance. Where r is farther than e from the nearest border between two codes, code(s) =
   code(r) for all s within e of r.
4. Angles. Let a distortion of the space change the angle between vector and anchor, seen from the
   anchors' mean. If it changes it by at most t radians, then e <= t, because a cosine changes no
   faster than its angle. If it turns each of the two by at most t, then e <= 2 t.

Guarantees 2 and 3 hold exactly for float32 input, because M r has at most 39 bits and is computed
in float64. Guarantee 1 holds up to the rounding of the dtype of the answer, which `error_bound`
includes.

Moschella et al. 2023, appendix A.3, quantise the absolute embeddings instead: they cluster them
agglomeratively up to a distance threshold and replace each vector by the centroid of its cluster.
That is invariant to every change that moves no vector into another cluster. No bound on a
distortion can estimate this, because some vectors lie at a border. A vector that was not clustered
has no code, and items of one cluster become indistinguishable. `research/anchor_strategies`
measures that variant; the service does not offer it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from app.errors import InvalidOption

#: Below 2 bits no grid has a zero; above 16 bits a code does not fit int16.
FEWEST_BITS, MAX_BITS = 2, 16

#: The largest error of a level written in an answer's dtype: half the distance of its numbers below
#: 1. A float16 is rounded from a float32.
DTYPE_ROUNDING = {"float32": 2.0**-25, "float16": 2.0**-12 + 2.0**-25}

#: Numbers converted to float64 at a time; they fit a core's cache.
NUMBERS_PER_STEP = 2**17


def largest_code(bits: int) -> int:
    """M = 2^(bits - 1) - 1; codes lie in -M..M. Raises InvalidOption unless 2 <= bits <= 16."""
    if not FEWEST_BITS <= bits <= MAX_BITS:
        raise InvalidOption(
            f"`bits` must lie between {FEWEST_BITS} and {MAX_BITS}, got {bits}.", field="bits"
        )
    return (1 << (bits - 1)) - 1


def step_size(bits: int) -> float:
    """D = 1 / M, the distance between neighbouring levels, in the unit of cosines. Raises
    InvalidOption.
    """
    return 1 / largest_code(bits)


def error_bound(bits: int, *, dtype: str = "float32") -> float:
    """D/2 + the rounding of `dtype`: the largest distance of a cosine in [-1, 1] from its written
    level. Raises InvalidOption.
    """
    return step_size(bits) / 2 + DTYPE_ROUNDING[dtype]


def keeps_levels(bits: int, dtype: str) -> bool:
    """Whether levels written as `dtype` stay distinct, so that round(M value) gives the code.
    Raises InvalidOption.
    """
    return DTYPE_ROUNDING[dtype] < step_size(bits) / 2


def quantise_in_place(relative: Float32[Tensor, "n k"], *, bits: int) -> None:
    """Replace finite cosines r (n, k) by Q(r), a few rows at a time. Raises InvalidOption."""
    most = largest_code(bits)
    count = max(1, NUMBERS_PER_STEP // relative.shape[1])
    for start in range(0, len(relative), count):
        rows = relative[start : start + count]
        rows.copy_(levels(rows, most).div_(most))


def levels(relative: Float[Tensor, "n k"], most: int) -> Tensor:
    """Codes floor(M r + 1/2) (n, k) as float64, with M = `most`. Cosines that rounding moved
    outside [-1, 1] get the code -M or M.
    """
    return relative.to(torch.float64, copy=True).mul_(most).add_(0.5).floor_().clamp_(-most, most)
