"""Two spaces of one anchor set, in coordinates in which every method is a small matrix.

With the kept spectra U_x = W_x diag(s_x) V_x^T and U_y = W_y diag(s_y) V_y^T, each T that is fitted
to unit anchors is T = V_x F V_y^T, because a fit is undefined outside the span of its anchors. The
methods differ in the *core* F (r_x, r_y) alone. All methods share the two spectra, and a core costs
little in comparison, which allows many cores to be compared.
"""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Tensor

from app.maths.geometry.space import Space
from app.maths.geometry.spectrum import rank_tolerance

Core = Float64[Tensor, "rx ry"]


class Pair:
    """Two spaces with the same items as anchors.

    source, target  row i of both is the same item
    """

    def __init__(self, source: Space, target: Space) -> None:
        self.source, self.target = source, target
        self.x, self.y = source.spectrum, target.spectrum

    @cached_property
    def overlap(self) -> Core:
        """M = W_x^T W_y (r_x, r_y), so that U_x^T U_y = V_x diag(s_x) M diag(s_y) V_y^T."""
        return self.x.left.T @ self.y.left

    @cached_property
    def cross_product(self) -> Core:
        """diag(s_x) M diag(s_y) (r_x, r_y): the product U_x^T U_y in the coordinates of the two
        kept spans.
        """
        return self.x.values[:, None] * self.overlap * self.y.values

    @cached_property
    def rotation(self) -> tuple[Core, float]:
        """The partial isometry R (r_x, r_y) nearest to `cross_product`, and the sum of its kept
        singular values.
        """
        left, values, right = torch.linalg.svd(self.cross_product, full_matrices=False)
        # The product squares the anchors' spectrum, so its rounding is relative to |U_x| |U_y| and
        # not to its own largest singular value.
        sizes = (self.source.dim, self.target.dim, self.source.size)
        keep = values > rank_tolerance(sizes, float(self.x.values[0] * self.y.values[0]))
        return left[:, keep] @ right[keep], float(values[keep].sum())

    def join(self, core: Core) -> Float64[Tensor, "dx dy"]:
        """The full matrix T = V_x F V_y^T (d_x, d_y) of a core F."""
        matrix: Tensor = (self.x.right.T @ core) @ self.y.right
        return matrix
