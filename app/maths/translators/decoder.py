"""Decoders: the map from relative coordinates to the target space."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Float32, Float64
from torch import Tensor

from app.errors import OutOfRange
from app.maths.geometry.space import ROUNDING, Space, check_vectors, row_norms, unit_rows


@dataclass(frozen=True, eq=False)
class Decoder:
    """The map from relative coordinates: decode(r) = s_y * r'(r D) + m_y, made from the target's
    anchors alone.

    matrix       (k, d_y)  D, for vectors in relative coordinates
    energy       (k,)      squared lengths of D's rows, which bound the effect of a rounding of each
                 coordinate
    scale, mean            s_y and m_y (d_y,), in the target encoder's units
    renormalise            whether r' scales to unit length before s_y (an ensemble mean shrinks
                           norms) or is the identity
    kernel                 whether `kernel_of` is applied to relative coordinates before D
    """

    matrix: Float32[Tensor, "k dy"]
    energy: Float32[Tensor, " k"]
    scale: float
    mean: Float32[Tensor, " dy"]
    renormalise: bool
    kernel: bool = False

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes + self.energy.nbytes + self.mean.nbytes

    @cached_property
    def max_energy(self) -> float:
        """The largest of `energy`."""
        return float(self.energy.max())

    def rounding_of(self, length: float) -> float:
        """The length below which the product of coordinates of that length may be noise."""
        return ROUNDING * length * math.sqrt(self.max_energy)


@dataclass(frozen=True, eq=False)
class TranslatedRows:
    """Translations, on the device of the vectors, and which rows have none, on the CPU.

    vectors  (n, d_y) in the target's units: float32, or float16 rounded from it
    at_mean  (n,) rows that equal the source's mean: they have no direction, and became the target's
             mean
    outside  (n,) rows whose direction lies outside the span of the anchors: they became the
             target's mean
    """

    vectors: Float[Tensor, "n dy"]
    at_mean: Bool[Tensor, " n"]
    outside: Bool[Tensor, " n"]


def make_decoder(
    target: Space,
    matrix: Float64[Tensor, "m dy"],
    *,
    renormalise: bool = True,
    kernel: bool = False,
) -> Decoder:
    """Round a fitted matrix and the target's statistics to float32, the precision of serving."""
    energy = matrix.square().sum(dim=1).float()
    return Decoder(
        matrix.float().contiguous(), energy, target.scale, target.mean.float(), renormalise, kernel
    )


def kernel_of(cosines: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    """f(c) = e^c - 1 of each number, in place; dimensionless."""
    return cosines.expm1_()


def decode(decoder: Decoder, relative: Float[Tensor, "n k"]) -> TranslatedRows:
    """s_y * r'(r D) + m_y for relative vectors r (n, k), any float dtype, decoded in float32.

    A row of zeros stands for a vector equal to its own mean. Raises as `check_vectors`, and
    OutOfRange for rows so large that their product overflows.
    """
    check_vectors(relative, dim=decoder.matrix.shape[0])
    coordinates = relative.float()
    vectors, known = decode_coordinates(decoder, coordinates, coordinates.new_zeros(1))
    overflowed = (~vectors.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if overflowed:
        raise OutOfRange(
            f"{len(overflowed)} relative vectors are too large to decode in float32. "
            "Scale them down.",
            rows=overflowed,
        )
    at_mean = coordinates.abs().amax(dim=1) == 0
    return TranslatedRows(vectors, at_mean.cpu(), (~known & ~at_mean).cpu())


def decode_coordinates(
    decoder: Decoder,
    coordinates: Float32[Tensor, "n m"],
    more: Float32[Tensor, " *n"],
    stretch: Float32[Tensor, " n"] | None = None,
) -> tuple[Float32[Tensor, "n dy"], Bool[Tensor, " n"]]:
    """s_y * r'(c M) + m_y, the last product of serving, and which rows (n,) have a known direction.
    A kernel's decoder takes f(c) for c.

    A product no longer than the rounding of its coordinates can make it, 8 eps sqrt(sum_i c_i^2
    |M_i|^2 + more), is noise, and counts as zero.

    more     (n,), or one number for all: squared error of the coordinates themselves, in units of
             eps
    stretch  (n,) the length of each row relative to the usual one; None: 1
    """
    if decoder.kernel:
        coordinates = kernel_of(coordinates.clone())
    product = coordinates @ decoder.matrix
    lengths = row_norms(product)
    known = lengths > ROUNDING * (coordinates.square() @ decoder.energy + more).sqrt()
    if decoder.renormalise:
        product = unit_rows(product, torch.where(known, lengths, 0.0))
    if stretch is not None:
        product = product.mul_(torch.where(known, stretch, 0.0)[:, None])
    return product.mul_(decoder.scale).add_(decoder.mean), known
