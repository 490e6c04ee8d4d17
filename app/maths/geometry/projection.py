"""Native and translated vectors of the same items as points in one plane."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Float32, Float64
from torch import Tensor

from app.maths.geometry.space import Space, normalise

#: axes of the plane
AXES = 2


@dataclass(frozen=True, eq=False)
class PairPlane:
    """n items as points in the plane of the two first principal components of a space.

    native, translated  (n, 2) each item's own vector and its translation, as directions from the
                        space's mean: a point lies in the unit circle
    errors              (n,) 1 - cosine of the two vectors, 0 to 2
    explained           share of the anchors' variance that the plane shows, 0 to 1
    held_out            whether fits that did not see an item translated it
    """

    native: Float32[Tensor, "n 2"]
    translated: Float32[Tensor, "n 2"]
    errors: Float32[Tensor, " n"]
    explained: float
    held_out: bool

    @property
    def nbytes(self) -> int:
        return self.native.nbytes + self.translated.nbytes + self.errors.nbytes


def project_pairs(
    space: Space,
    native: Float[Tensor, "n d"],
    translated: Float[Tensor, "n d"],
    *,
    held_out: bool,
) -> PairPlane:
    """The points of vectors (n, d) in the space's own units, row i of both the same item.

    The components are the right singular vectors of the unit anchors, so that distances in the
    plane are those that cosine search sees. A vector at the mean has no direction: its point is
    the origin and its error 1.
    """
    axes, explained = principal_axes(space)
    own, made = (normalise(each.double(), space.mean)[0] for each in (native, translated))
    errors = 1.0 - (own * made).sum(dim=1)
    return PairPlane(
        native=(own @ axes.T).float(),
        translated=(made @ axes.T).float(),
        errors=errors.clamp(0, 2).float(),
        explained=explained,
        held_out=held_out,
    )


def principal_axes(space: Space) -> tuple[Float64[Tensor, "2 d"], float]:
    """The first principal components of the unit anchors, and the share of variance they explain.

    The largest coordinate of an axis is positive, so that equal anchors give equal maps. Anchors
    of rank 1 have one axis, and the other is zero.
    """
    spectrum = space.spectrum
    found = spectrum.right[:AXES]
    axes = found.new_zeros(AXES, space.dim)
    largest = found.gather(1, found.abs().argmax(dim=1, keepdim=True))
    axes[: len(found)] = found * largest.sign()
    variances = spectrum.values.square()
    return axes, float(variances[:AXES].sum() / variances.sum())
