"""A space: one encoder's embeddings of the anchors, centred on their mean and scaled to unit
length.

For raw anchors A (k x d): mean m = mean of the rows; scale s = mean of |A_i - m|; unit anchors U_i
= (A_i - m) / |A_i - m|. For a vector x: n(x) = (x - m) / |x - m|, and relative(x) = n(x) U^T.
Sources: Moschella et al. 2023, section 3 (cosine to anchors); centring on the anchors' statistics
as in "Inverse Relative Projection" (Maiorca et al. 2024), section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors, DimensionMismatch, EmptyVectors, NonFinite, OutOfRange
from app.maths.geometry.spectrum import Spectrum, kept_svd

#: The largest accepted magnitude, about 1.3e30. It is a float32, and float32 differences of such
#: values stay finite.
LARGEST_MAGNITUDE = 2.0**100

#: Eight roundings of float32. A row no farther from the mean, relative to its magnitude, has no
#: usable direction; a product no longer, relative to its factors, is noise.
ROUNDING = 8 * torch.finfo(torch.float32).eps

#: Relative errors of encoders' numbers. An encoder that computes in float32 loses some digits
#: before it rounds; one that stores float16 or bfloat16 usually computes in more digits.
TYPE_ROUNDING = {
    torch.bfloat16: torch.finfo(torch.bfloat16).eps,
    torch.float16: torch.finfo(torch.float16).eps,
    torch.float32: ROUNDING,
}

#: Rows whose cosines to all other rows are computed at a time.
COSINE_ROWS = 1024


@dataclass(frozen=True, eq=False)
class Space:
    """One encoder's anchors.

    mean   (d,)    m, in the encoder's own units
    scale  > 0     s, the mean distance of an anchor from m, in the encoder's own units
    unit   (k, d)  U, dimensionless; a row is zero when its anchor equals the mean
    norms  (k,)    |A_i - m|, in the encoder's own units; zero for such a row
    rounding       >= 0, the relative error of the encoder's numbers (`relative_rounding`); 0: exact
    """

    mean: Float64[Tensor, " d"]
    scale: float
    unit: Float64[Tensor, "k d"]
    norms: Float64[Tensor, " k"]
    rounding: float = 0.0

    @cached_property
    def spectrum(self) -> Spectrum:
        """The spectrum of U, without the directions that are rounding of the encoder's numbers."""
        return kept_svd(self.unit, noise=self.noise)

    @cached_property
    def noise(self) -> float:
        """The largest singular value that the rounding of the anchors can give U: rounding
        (1 + sqrt(k / d)) times the root mean square of |A_i| |U_i| / |A_i - m|.

        A random (k, d) matrix whose rows have length 1 has about the largest singular value
        1 + sqrt(k / d). |A_i| is sqrt(|A_i - m|^2 + |m|^2), exact in the mean over the rows.
        Source: Bai and Yin 1993 (largest singular values of random matrices).
        """
        lengths = (self.norms.square() + self.mean.square().sum()).sqrt()
        errors = torch.where(self.norms > 0, lengths / self.norms, 0.0) * row_norms(self.unit)
        spread = 1.0 + math.sqrt(self.size / self.dim)
        return self.rounding * spread * float(errors.square().mean().sqrt())

    @property
    def size(self) -> int:
        return self.unit.shape[0]

    @property
    def dim(self) -> int:
        return self.unit.shape[1]


def draw_rows(count: int, most: int | None = None, *, seed: int = 0) -> Int64[Tensor, " m"]:
    """At most `most` of `count` rows, or all, in random order; equal seeds draw equal rows."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most]


def check_vectors(vectors: Float[Tensor, "n d"], *, dim: int | None = None) -> None:
    """Refuse vectors that no formula here can use.

    vectors  (n, d), any float dtype
    Raises EmptyVectors (n or d is 0), DimensionMismatch (d differs from `dim`), NonFinite and
    OutOfRange; the last two name the rows.
    """
    check_shape(vectors, dim=dim)
    # One pass decides the usual case: NaN and infinity both survive a maximum of magnitudes. The
    # maximum is compared as a Python number, because the limit would overflow in float16.
    if float(vectors.abs().amax()) <= LARGEST_MAGNITUDE:
        return
    finite = vectors.isfinite().all(dim=1)
    if not bool(finite.all()):
        rows = (~finite).nonzero().flatten().tolist()
        raise NonFinite(
            f"{len(rows)} of {vectors.shape[0]} vectors contain NaN, infinity, or numbers too "
            "large for a float. Remove or repair them.",
            rows=rows,
        )
    rows = (vectors.abs().amax(dim=1) > LARGEST_MAGNITUDE).nonzero().flatten().tolist()
    raise OutOfRange(
        f"{len(rows)} of {vectors.shape[0]} vectors contain magnitudes above 2^100 (1.3e30). "
        "Scale them down.",
        rows=rows,
    )


def check_shape(vectors: Float[Tensor, "n d"], *, dim: int | None = None) -> None:
    """Raise EmptyVectors (n or d is 0) or DimensionMismatch (d differs from `dim`). Does not read
    the numbers.
    """
    if vectors.shape[0] == 0 or vectors.shape[1] == 0:
        raise EmptyVectors(
            f"Send at least one vector of at least one number; got shape {list(vectors.shape)}."
        )
    if dim is not None and vectors.shape[1] != dim:
        raise DimensionMismatch(
            f"The vectors have {vectors.shape[1]} dimensions; {dim} are expected. "
            "Send vectors of the encoder that is named for them."
        )


def refuse_overflow(overflowing: Tensor, field: str | None = None) -> None:
    """Raises OutOfRange for the rows (n,) that float16 cannot hold."""
    wrong = overflowing.nonzero().flatten().tolist()
    if wrong:
        detail = f"{len(wrong)} rows have numbers beyond 65504, the most of float16. Use float32"
        raise OutOfRange(detail, field=field, rows=wrong)


def unit_rows(rows: Float[Tensor, "n d"], norms: Float64[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """Rows (n, d) divided by their norms (n,), in any unit; a row of norm 0 becomes zero."""
    inverse = torch.where(norms > 0, 1.0 / norms, 0.0)
    # Two scalings keep 1/norm inside float32 for vectors as small as 1e-30.
    largest = rows.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return rows / largest * (inverse[:, None] * largest).to(rows.dtype)


def normalise(
    vectors: Float[Tensor, "n d"], mean: Float[Tensor, " d"]
) -> tuple[Float[Tensor, "n d"], Float64[Tensor, " n"]]:
    """n(x) = (x - m) / |x - m|; zero where x equals m up to rounding.

    vectors  (n, d), encoder's units, float32 or float64 (cast float16 first: its squares overflow)
    mean     (d,), same units and dtype
    Returns n(x) (n, d) and the norms |x - m| (n,) in float64, exactly 0 for rows that equal the
    mean.
    """
    return directions_and_norms(vectors - mean, mean)


def directions_and_norms(
    centred: Float[Tensor, "n d"], mean: Float[Tensor, " d"]
) -> tuple[Float[Tensor, "n d"], Float64[Tensor, " n"]]:
    """Centred rows (n, d) divided by their norms, and the norms (n,). Both are zero where the norm
    is within the rounding of the mean (d,).
    """
    norms = row_norms(centred)
    floor = ROUNDING * torch.linalg.vector_norm(mean, dtype=torch.float64)
    norms = torch.where(norms > floor, norms, 0.0)
    return unit_rows(centred, norms), norms


def row_norms(rows: Float[Tensor, "n d"]) -> Float64[Tensor, " n"]:
    """Row lengths in float64: squares of float32 values from 1e-30 to 1e30 neither vanish nor
    overflow.
    """
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms


def relative_rounding(anchors: Float64[Tensor, "k d"]) -> float:
    """The relative error of raw anchors (k, d), in any unit: of the least precise type that holds
    all their numbers; 0 where only float64 does.
    """
    for dtype, rounding in TYPE_ROUNDING.items():
        # The first row decides almost always.
        if all(torch.equal(rows.to(dtype).to(rows.dtype), rows) for rows in (anchors[:1], anchors)):
            return rounding
    return 0.0


def fit_space(anchors: Float[Tensor, "k d"]) -> Space:
    """Mean, scale and unit anchors of raw anchors.

    anchors  (k, d), the encoder's own units, any float dtype; fitted in float64
    Raises EmptyVectors, NonFinite and OutOfRange as `check_vectors`. Raises DegenerateAnchors when
    all anchors are the same vector, and so also for k = 1: centred on their mean they span nothing.
    """
    anchors = anchors.double()
    check_vectors(anchors)
    mean = anchors.mean(dim=0)
    centred = anchors - mean
    if mean.norm() > anchors.shape[0] * torch.finfo(torch.float64).eps * row_norms(anchors).max():
        # Centre twice: where the mean is large compared with the spread, its rounding would add one
        # common direction of noise.
        centred = centred - centred.mean(dim=0)
    else:
        # The mean is only the rounding of the sum. It would give a zero anchor among balanced
        # ones a random direction.
        mean, centred = torch.zeros_like(mean), anchors
    unit, norms = directions_and_norms(centred, mean)
    if not bool(norms.any()):
        raise DegenerateAnchors(
            f"The {anchors.shape[0]} anchors are all the same vector, up to float32 rounding. "
            "Use at least two different anchors."
        )
    return Space(mean, float(norms.mean()), unit, norms, rounding=relative_rounding(anchors))
