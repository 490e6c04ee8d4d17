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
    squared_spectrum,
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
    U_y before it is whitened; from more, a random part of them. Equal arguments give equal results.
    Raises InvalidOption.
    """
    check_power(decode_power, "options.decode_power")
    check_ridge(ridge)
    usable = (source.unit.abs().amax(dim=1) > 0).nonzero().flatten()
    rows = usable[draw_rows(len(usable), LANDMARKS)].sort().values
    centres = source.unit[rows]
    kernel = kernel_of(centres @ centres.T)
    if ridge is None:
        few = draw_rows(len(rows), MAX_GCV_ANCHORS)
        ridge = _choose_ridge(kernel[few][:, few], target.unit[rows[few]])
    ridge = max(ridge, LEAST_KERNEL_RIDGE)
    if len(rows) == len(usable):
        kernel.diagonal().add_(ridge)
        weights = torch.cholesky_solve(target.unit[rows], torch.linalg.cholesky(kernel))
    else:
        kernel.diagonal().add_(KERNEL_JITTER * math.expm1(1.0) * len(rows))
        factor = torch.linalg.cholesky(kernel, upper=True)
        gram, products = torch.zeros_like(kernel), kernel.new_zeros(len(rows), target.dim)
        for start in range(0, source.size, ANCHORS_PER_STEP):  # P = f(U L^T) R^-1
            some = slice(start, start + ANCHORS_PER_STEP)
            features = kernel_of(source.unit[some] @ centres.T)
            features = torch.linalg.solve_triangular(factor, features, upper=True, left=False)
            gram.addmm_(features.T, features)
            products.addmm_(features.T, target.unit[some])
        gram.diagonal().add_(ridge)
        solved = torch.cholesky_solve(products, torch.linalg.cholesky(gram))
        weights = torch.linalg.solve_triangular(factor, solved, upper=True)
    if decode_power > 0.0:
        values, right = squared_spectrum(target.unit, noise=target.noise)
        whitened = whitened_values(values, target.unit.shape, power=decode_power, ridge=None)
        factors = whitened / values * (values.norm() / whitened.norm())
        weights = weights @ (right.T * factors) @ right
    return KernelFit(centres, weights, rows)


def _choose_ridge(kernel: Float64[Tensor, "m m"], target: Float64[Tensor, "m dy"]) -> float:
    """The ridge by cross-validation of f(L L^T) (m, m) and the unit anchors of the target (m, d_y).
    float32 distinguishes the candidates as well as float64, in half the time.
    """
    values, vectors = torch.linalg.eigh(kernel.float())
    reached = (vectors.T @ target.float()).square().sum(dim=1).double()
    # f(1) is 1.7, and lengths of targets are 1: the usual candidates suit.
    values = values.double().clamp_min(0.0)
    return cross_validated_ridge(values, reached, beyond=0.0, count=len(kernel))
