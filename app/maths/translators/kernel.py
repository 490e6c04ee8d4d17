"""Kernel ridge regression on relative vectors: translate(x) = s_y r(f(n(x) L^T) B) + m_y.

The k cosines n(x) L^T of a vector to landmarks L are its relative vector. f(c) = e^c - 1, number by
number, is a positive definite kernel of two directions: c + c^2/2 + c^3/6 + ..., the linear kernel
and weaker ones of all higher degrees. So the map is not linear in n(x), and still reads nothing but
cosines. f(0) = 0: a direction outside the span of the anchors stays without a translation.

The landmarks are the source's unit anchors, or LANDMARKS of them where there are more, which limits
what a translation costs to LANDMARKS (d_x + d_y) products.

Sources: Saunders, Gammerman and Vovk 1998 (kernel ridge regression); Williams and Seeger 2001
(Nystroem's method); Moschella et al. 2023 (relative vectors).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from app.maths.geometry.space import Space, draw_rows
from app.maths.geometry.spectrum import (
    check_power,
    check_ridge,
    cross_validated_ridge,
    whitened_values,
)
from app.maths.translators.decoder import kernel_of

#: Anchors that choose the ridge at most: its cost grows with the cube of their number, and it
#: hardly depends on it.
MAX_GCV_ANCHORS = 1024

#: The most landmarks of a fit.
LANDMARKS = 2048

#: A smaller ridge would only enlarge the rounding of the float32 numbers that serve.
LEAST_KERNEL_RIDGE = 1e-5

#: Added to the diagonal of f(L L^T), relative to its largest sum: equal landmarks have no inverse.
KERNEL_JITTER = 1e-10

#: Anchors whose features are stored at a time, 8 bytes for each landmark.
ANCHORS_PER_STEP = 1024


class KernelFit(NamedTuple):
    """A fitted map.

    landmarks  (k, d_x)  L, unit anchors of the source
    weights    (k, d_y)  B
    rows       (k,)      the anchors that the landmarks are
    """

    landmarks: Float64[Tensor, "k dx"]
    weights: Float64[Tensor, "k dy"]
    rows: Int64[Tensor, " k"]


def fit_kernel(
    source: Space, target: Space, *, ridge: float | None, decode_power: float
) -> KernelFit:
    """B (k, d_y), which minimises sum_i |f(u_i L^T) B - y_i|^2 + ridge tr(B^T f(L L^T) B), with
    outputs whitened as in the graded family.

    source, target  u_i and y_i are rows of their unit anchors (n, d_x) and (n, d_y); row i of both
                    is the same item
    ridge           in [0, LARGEST_RIDGE], dimensionless, or None: by cross-validation of the exact
                    fit to MAX_GCV_ANCHORS anchors
    decode_power    b in [0, 1]: B is multiplied by c (U_y^T U_y + lambda I)^-b. lambda is
                    `usual_ridge` of the target, and c makes the whitened anchors as long as U_y
    From up to LANDMARKS anchors, L has all that have a direction, and B = (f(L L^T) + ridge I)^-1
    U_y; from more, a random part of them. Equal arguments give equal results. Raises InvalidOption.
    """
    check_power(decode_power, "options.decode_power")
    check_ridge(ridge)
    usable = (source.unit.abs().amax(dim=1) > 0).nonzero().flatten()
    order = usable[draw_rows(len(usable))]
    if ridge is None:
        ridge = _choose_ridge(source, target, order[:MAX_GCV_ANCHORS])
    rows = order[:LANDMARKS].sort().values if len(usable) > LANDMARKS else usable
    centres = source.unit[rows]
    factor = _factor(centres)
    gram, products = _normal_equations(source, target, centres, factor)
    gram.diagonal().add_(max(ridge, LEAST_KERNEL_RIDGE))
    solved = torch.cholesky_solve(products, torch.linalg.cholesky(gram))
    weights = torch.linalg.solve_triangular(factor, solved, upper=True)
    if decode_power > 0.0:
        spectrum = target.spectrum
        values = whitened_values(spectrum, power=decode_power, ridge=None)
        factors = values / spectrum.values * (spectrum.values.norm() / values.norm())
        weights = weights @ ((spectrum.right.T * factors) @ spectrum.right)
    return KernelFit(centres, weights, rows)


def _choose_ridge(source: Space, target: Space, rows: Int64[Tensor, " m"]) -> float:
    """The ridge by cross-validation over some anchors (m,) with a direction in the source."""
    values, vectors = torch.linalg.eigh(kernel_of(source.unit[rows] @ source.unit[rows].T))
    reached = (vectors.T @ target.unit[rows]).square().sum(dim=1)
    # f(1) is 1.7, and lengths of targets are 1: the usual candidates suit.
    return cross_validated_ridge(values.clamp_min(0.0), reached, beyond=0.0, count=len(rows))


def _factor(centres: Float64[Tensor, "k dx"]) -> Float64[Tensor, "k k"]:
    """The upper triangular R with R^T R = f(L L^T) and KERNEL_JITTER on its diagonal."""
    kernel = kernel_of(centres @ centres.T)
    kernel.diagonal().add_(KERNEL_JITTER * math.expm1(1.0) * len(centres))
    factor: Tensor = torch.linalg.cholesky(kernel, upper=True)
    return factor


def _normal_equations(
    source: Space,
    target: Space,
    centres: Float64[Tensor, "k dx"],
    factor: Float64[Tensor, "k k"],
) -> tuple[Float64[Tensor, "k k"], Float64[Tensor, "k dy"]]:
    """P^T P and P^T U_y of the features P = f(U L^T) R^-1, some anchors at a time."""
    gram = source.unit.new_zeros(len(centres), len(centres))
    products = source.unit.new_zeros(len(centres), target.dim)
    for start in range(0, source.size, ANCHORS_PER_STEP):
        rows = slice(start, start + ANCHORS_PER_STEP)
        features = kernel_of(source.unit[rows] @ centres.T)
        features = torch.linalg.solve_triangular(factor, features, upper=True, left=False)
        gram.addmm_(features.T, features)
        products.addmm_(features.T, target.unit[rows])
    return gram, products
