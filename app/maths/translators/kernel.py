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
MAX_GCV_ANCHORS = 512

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
    ridge = _ridge_of(kernel, target.unit[rows], ridge)
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
        weights = weights @ _whitening(target, decode_power)
    return KernelFit(centres, weights, rows)


def hold_out_folds(
    source: Space,
    target: Space,
    fold_of: Int64[Tensor, " n"],
    *,
    ridge: float | None,
    decode_power: float,
) -> Float64[Tensor, "n dy"]:
    """What the weights of the anchors outside a fold make of each anchor in it, (n, d_y), before it
    is scaled and placed. Ridge, centres and whitening are those of all anchors.

    fold_of  (n,) the fold of each anchor; the other arguments are those of `fit_kernel`
    With A = f(U_x U_x^T) + ridge I, the outputs of fold S are Y_S - ((A^-1)_SS)^-1 (A^-1 Y)_S: no
    fold needs a fit of its own. Source: An, Liu and Venkatesh 2007, "Fast cross-validation
    algorithms for least squares support vector machine and kernel ridge regression".
    """
    kernel = kernel_of(source.unit @ source.unit.T)
    kernel.diagonal().add_(_ridge_of(kernel, target.unit, ridge))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(kernel))
    weights, outputs = inverse @ target.unit, target.unit.clone()
    for fold in torch.unique(fold_of):
        rows = (fold_of == fold).nonzero().flatten()
        outputs[rows] -= torch.linalg.solve(inverse[rows][:, rows], weights[rows])
    return outputs @ _whitening(target, decode_power) if decode_power > 0.0 else outputs


def _whitening(target: Space, power: float) -> Float64[Tensor, "dy dy"]:
    """The matrix c (U_y^T U_y + lambda I)^-b, in the span of U_y."""
    values, right = squared_spectrum(target.unit, noise=target.noise)
    whitened = whitened_values(values, target.unit.shape, power=power, ridge=None)
    factors = whitened / values * (values.norm() / whitened.norm())
    whitening: Tensor = (right.T * factors) @ right
    return whitening


def _ridge_of(
    kernel: Float64[Tensor, "k k"], target: Float64[Tensor, "k dy"], ridge: float | None
) -> float:
    """The ridge that was asked for, or the one by cross-validation; not below the least."""
    if ridge is None:
        few = draw_rows(len(kernel), MAX_GCV_ANCHORS)
        ridge = _choose_ridge(kernel[few][:, few], target[few])
    return max(ridge, LEAST_KERNEL_RIDGE)


def _choose_ridge(kernel: Float64[Tensor, "m m"], target: Float64[Tensor, "m dy"]) -> float:
    """The ridge by cross-validation of f(L L^T) (m, m) and the unit anchors of the target (m, d_y).
    float32 distinguishes the candidates as well as float64, in half the time.
    """
    values, vectors = torch.linalg.eigh(kernel.float())
    reached = (vectors.T @ target.float()).square().sum(dim=1).double()
    # f(1) is 1.7, and lengths of targets are 1: the usual candidates suit.
    values = values.double().clamp_min(0.0)
    return cross_validated_ridge(values, reached, beyond=0.0, count=len(kernel))
