"""Two spaces of one anchor set, in coordinates in which every method is a small matrix.

With the kept spectra U_x = W_x diag(s_x) V_x^T and U_y = W_y diag(s_y) V_y^T, each T that is fitted
to unit anchors is T = V_x F V_y^T, because a fit is undefined outside the span of its anchors. The
methods differ in the *core* F (r_x, r_y) alone. All methods share the two spectra, and a core costs
little in comparison, which allows many cores to be compared.

The graded family: each side is whitened by a separate power, computed from its own anchors
alone.

With C = U^T U + ridge I: projector E = C^-a U^T (d x k), decoder D = U C^-b (k x d), T = E_x D_y.
(a, b) = (0, 1) is the paper's inverse with a ridge, (1, 0) ridge regression of unit anchors on unit
anchors, (1/2, 1/2) the product of the two Parseval frames. No part is fitted to a pair of spaces,
so N spaces need N projectors and N decoders. Our own family; `benchmarks/quality` measures it,
and docs/explanation/methods.md explains it.

Joint methods: the map is fitted to the anchors of both spaces at once. Serving uses the same
single matrix.

Each method is a core F (r_x, r_y) of a pair, with T = V_x F V_y^T.
Unit anchors U_x (k, d_x) and U_y (k, d_y) are dimensionless, row i the same item in both; M is
their `overlap`, R their `rotation`.
"""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Tensor

from app.maths.geometry.space import Space
from app.maths.geometry.spectrum import (
    check_power,
    check_ridge,
    cross_validated_ridge,
    rank_tolerance,
    whitened_values,
)

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
    def rotation(self) -> Core:
        """The partial isometry R (r_x, r_y) nearest to U_x^T U_y: the core of `procrustes`,
        which maximises trace(T^T U_x^T U_y).

        With U_x^T U_y = P diag(sigma) Q^T, only the r directions with sigma above rounding noise
        are used: T = P_r Q_r^T. For k < d the full polar factor is not unique and would depend on
        the SVD routine; the rank-r one is unique, and has the least norm. T has r singular values
        equal to 1 and the rest 0.
        Source: Schoenemann 1966; rectangular and rank-deficient case: the canonical polar
        decomposition (Higham 2010).
        """
        product = self.x.values[:, None] * self.overlap * self.y.values
        left, values, right = torch.linalg.svd(product, full_matrices=False)
        # The product squares the anchors' spectrum, so its rounding is relative to |U_x| |U_y| and
        # not to its own largest singular value.
        sizes = (self.source.dim, self.target.dim, self.source.size)
        keep = values > rank_tolerance(sizes, float(self.x.values[0] * self.y.values[0]))
        nearest: Core = left[:, keep] @ right[keep]
        return nearest

    def join(self, core: Core) -> Float64[Tensor, "dx dy"]:
        """The full matrix T = V_x F V_y^T (d_x, d_y) of a core F."""
        matrix: Tensor = (self.x.right.T @ core) @ self.y.right
        return matrix


def whitened(
    space: Space, *, power: float, ridge: float | None, field: str
) -> Float64[Tensor, "k d"]:
    """U (U^T U + ridge I)^-power, by SVD: W diag(s (s^2 + ridge)^-power) V^T for U = W diag(s) V^T.

    On the target's side it is the decoder D from relative coordinates r: r D; power 1 is
    `irp-ridge`. Its transpose on the source's side is the projector E.

    power  in [0, 1], the part of the anchors' covariance that is removed; 0 returns U itself
    ridge  in [0, LARGEST_RIDGE], on the scale of squared singular values of U (whose sum is at most
           k); 0 gives the pseudoinverse; None: `usual_ridge` of the anchors
    field  the name of the power in a request, for its error
    Returns (k, d). Raises InvalidOption.
    """
    check_power(power, field)
    check_ridge(ridge)
    if power == 0.0:
        return space.unit
    spectrum = space.spectrum
    values = whitened_values(spectrum.values, space.unit.shape, power=power, ridge=ridge)
    return (spectrum.left * values) @ spectrum.right


def projector(space: Space, *, power: float, ridge: float | None) -> Float64[Tensor, "d k"]:
    """E = (U^T U + ridge I)^-power U^T (d, k), into relative coordinates: n(x) E. Power 0 gives the
    paper's cosines. Arguments and errors are those of `whitened`.
    """
    return whitened(space, power=power, ridge=ridge, field="options.encode_power").T


def graded(pair: Pair, *, encode_power: float, decode_power: float, ridge: float | None) -> Core:
    """F = diag(s_x (s_x^2 + ridge)^-a) M diag(s_y (s_y^2 + ridge)^-b) (r_x, r_y): T = V_x F V_y^T =
    E_x D_y.

    encode_power, decode_power  a and b, each in [0, 1]
    ridge                       as above; None: each space uses its own
    Raises InvalidOption.
    """
    check_power(encode_power, "options.encode_power")
    check_power(decode_power, "options.decode_power")
    check_ridge(ridge)
    shapes = pair.source.unit.shape, pair.target.unit.shape
    left = whitened_values(pair.x.values, shapes[0], power=encode_power, ridge=ridge)
    right = whitened_values(pair.y.values, shapes[1], power=decode_power, ridge=ridge)
    return left[:, None] * pair.overlap * right


def regression(pair: Pair, *, ridge: float | None) -> Core:
    """T = (U_x^T U_x + ridge I)^-1 U_x^T U_y, which minimises |U_x T - U_y|^2 + ridge |T|^2.

    ridge  >= 0 (0: least squares of least norm), or None: by cross-validation
    Raises InvalidOption. With a fixed ridge it is the graded family at (1, 0); the choice of the
    ridge uses both spaces.
    """
    if ridge is None:
        reached = (pair.overlap * pair.y.values).square().sum(dim=1)
        ridge = cross_validated_ridge(
            pair.x.values.square(),
            reached,
            beyond=max(0.0, float(pair.y.values.square().sum() - reached.sum())),
            count=pair.source.size,
        )
    return graded(pair, encode_power=1.0, decode_power=0.0, ridge=ridge)
