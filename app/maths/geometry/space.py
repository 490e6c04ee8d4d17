"""A space: one encoder's embeddings of the anchors, centred on their own mean and scaled to unit length.

For raw anchors A (k x d): mean m = mean of the rows; scale s = mean of |A_i - m|; unit anchors U_i = (A_i - m) / |A_i - m|.
For a vector x: n(x) = (x - m) / |x - m|, and relative(x) = n(x) U^T.
Sources: Moschella et al. 2023, section 3 (cosine to anchors); centring on the anchors' statistics as in
"Inverse Relative Projection" (Maiorca et al. 2024), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from app.errors import DegenerateAnchors, DimensionMismatch, EmptyVectors, NonFinite, OutOfRange
from app.maths.geometry.spectrum import Spectrum, kept_svd

#: the largest magnitude accepted, about 1.3e30: differences of such values stay finite in float32, and it is itself a float32
LARGEST_MAGNITUDE = 2.0**100

#: a row nearer to the mean than this many float32 roundings of its own magnitude has no direction worth the name
NOISE_ROUNDINGS = 8


@dataclass(frozen=True, eq=False)
class Space:
    """What every method may use of one encoder's anchors.

    mean   (d,)    m, in the encoder's own units
    scale  > 0     s, the mean distance of an anchor from m, in the encoder's own units
    unit   (k, d)  U, dimensionless; a row is zero when its anchor equals the mean
    norms  (k,)    |A_i - m|, in the encoder's own units; zero for such a row
    """

    mean: Float64[Tensor, " d"]
    scale: float
    unit: Float64[Tensor, "k d"]
    norms: Float64[Tensor, " k"]

    @cached_property
    def spectrum(self) -> Spectrum:
        """That of U."""
        return kept_svd(self.unit)

    @property
    def size(self) -> int:
        return self.unit.shape[0]

    @property
    def dim(self) -> int:
        return self.unit.shape[1]


def check_vectors(vectors: Float[Tensor, "n d"], *, dim: int | None = None) -> None:
    """Refuse what no formula here can use.

    vectors  (n, d), any float dtype
    Raises EmptyVectors (n or d is 0), DimensionMismatch (d differs from `dim`), NonFinite and OutOfRange, naming the rows.
    """
    check_shape(vectors, dim=dim)
    # One pass decides the usual case: NaN and infinity both survive a maximum of magnitudes.
    # As a Python number: float16 would round the bound itself to infinity.
    if float(vectors.abs().amax()) <= LARGEST_MAGNITUDE:
        return
    finite = vectors.isfinite().all(dim=1)
    if not bool(finite.all()):
        rows = (~finite).nonzero().flatten().tolist()
        raise NonFinite(
            f"{len(rows)} of {vectors.shape[0]} vectors hold NaN, infinity or a number no float can hold",
            rows=rows,
        )
    rows = (vectors.abs().amax(dim=1) > LARGEST_MAGNITUDE).nonzero().flatten().tolist()
    raise OutOfRange(
        f"{len(rows)} of {vectors.shape[0]} vectors hold magnitudes above 2^100 (1.3e30)", rows=rows
    )


def check_shape(vectors: Float[Tensor, "n d"], *, dim: int | None = None) -> None:
    """Raises EmptyVectors (n or d is 0) and DimensionMismatch (d differs from `dim`); the numbers are not looked at."""
    if vectors.shape[0] == 0 or vectors.shape[1] == 0:
        raise EmptyVectors(
            f"expected at least one vector of at least one number, got shape {list(vectors.shape)}"
        )
    if dim is not None and vectors.shape[1] != dim:
        raise DimensionMismatch(f"expected vectors of dimension {dim}, got {vectors.shape[1]}")


def unit_rows(rows: Float[Tensor, "n d"], norms: Float64[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """Rows (n, d) over their norms (n,), any units; zero where the norm is given as 0."""
    inverse = torch.where(norms > 0, 1.0 / norms, 0.0)
    # Scaling in two steps keeps 1/norm itself inside float32 for vectors as small as 1e-30.
    largest = rows.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return rows / largest * (inverse[:, None] * largest).to(rows.dtype)


def normalise(
    vectors: Float[Tensor, "n d"], mean: Float[Tensor, " d"]
) -> tuple[Float[Tensor, "n d"], Float64[Tensor, " n"]]:
    """n(x) = (x - m) / |x - m|, and zero where x equals m up to rounding.

    vectors  (n, d), encoder's units, float32 or float64 (cast float16 first: its squares overflow)
    mean     (d,), same units and dtype
    Returns n(x) (n, d), and the norms |x - m| (n,) in float64, exactly 0 for the rows that equal the mean.
    """
    return directions_and_norms(vectors - mean, mean)


def directions_and_norms(
    centred: Float[Tensor, "n d"], mean: Float[Tensor, " d"]
) -> tuple[Float[Tensor, "n d"], Float64[Tensor, " n"]]:
    """Centred rows (n, d) over their norms, and the norms (n,): both zero where a norm is only rounding of the mean's (d,)."""
    norms = row_norms(centred)
    rounding = NOISE_ROUNDINGS * torch.finfo(torch.float32).eps
    floor = rounding * torch.linalg.vector_norm(mean, dtype=torch.float64)
    norms = torch.where(norms > floor, norms, 0.0)
    return unit_rows(centred, norms), norms


def row_norms(rows: Float[Tensor, "n d"]) -> Float64[Tensor, " n"]:
    """Row lengths in float64: squares of float32 values from 1e-30 to 1e30 neither vanish nor overflow."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms


def fit_space(anchors: Float[Tensor, "k d"]) -> Space:
    """Mean, scale and unit anchors of raw anchors.

    anchors  (k, d), the encoder's own units, any float dtype; fitted in float64
    Raises EmptyVectors, NonFinite and OutOfRange as `check_vectors`; DegenerateAnchors when every anchor is the same vector
    (so also for k = 1): centred on their own mean they span nothing.
    """
    anchors = anchors.double()
    check_vectors(anchors)
    mean = anchors.mean(dim=0)
    centred = anchors - mean
    if mean.norm() > anchors.shape[0] * torch.finfo(torch.float64).eps * row_norms(anchors).max():
        # Twice: where the mean is large beside the spread, its rounding would leave one common direction of noise.
        centred = centred - centred.mean(dim=0)
    else:
        # Only the rounding of the sum: kept, it would give a zero anchor among balanced ones a random direction.
        mean, centred = torch.zeros_like(mean), anchors
    unit, norms = directions_and_norms(centred, mean)
    if not bool(norms.any()):
        raise DegenerateAnchors(
            f"the {anchors.shape[0]} anchors are all the same vector, up to float32 rounding: centred, they have rank 0"
        )
    return Space(mean=mean, scale=float(norms.mean()), unit=unit, norms=norms)


def uncentred(space: Space) -> Space:
    """The same anchors about the origin in place of their mean: for encoders whose own zero means something.

    Then U = A_i / |A_i|, s = mean of |A_i|, m = 0. Raises DegenerateAnchors when every anchor is zero, which none is after
    `fit_space`.
    """
    anchors = space.unit * space.norms[:, None] + space.mean
    norms = row_norms(anchors)
    if not bool(norms.any()):
        raise DegenerateAnchors("the anchors are all zero")
    return Space(
        torch.zeros_like(space.mean), float(norms.mean()), unit_rows(anchors, norms), norms
    )


def unscaled(space: Space) -> Space:
    """The same space with rows (A_i - m) / s, whose lengths differ as the anchors' do: what an affine map is fitted to."""
    return Space(
        space.mean, space.scale, space.unit * (space.norms / space.scale)[:, None], space.norms
    )
