"""Joint methods: the map is fitted to both spaces' anchors at once. Serving is the same one matrix."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from app.maths import graded
from app.maths.spectrum import rank_tolerance


def procrustes(source: Float64[Tensor, "k dx"], target: Float64[Tensor, "k dy"]) -> Float64[Tensor, "dx dy"]:
    """The partial isometry nearest to the anchors: T = P_r Q_r^T, maximising trace(T^T U_x^T U_y).

    source  (k, d_x) and target (k, d_y): unit anchors, row i the same item in both
    With U_x^T U_y = P diag(sigma) Q^T, only the r directions with sigma above rounding noise are used. For k < d the full polar
    factor is not unique and would depend on the SVD at hand; the rank-r one is, and has the least norm.
    Returns T (d_x, d_y) with r singular values equal to 1 and the rest 0.
    Source: Schoenemann 1966; rectangular and rank-deficient case: the canonical polar decomposition (Higham 2010).
    """
    if source.shape[0] < min(source.shape[1], target.shape[1]):
        # The product has rank k at most: its SVD from that of k x k, since U_x^T = Q_x R_x and U_y^T = Q_y R_y.
        (qx, rx), (qy, ry) = torch.linalg.qr(source.T), torch.linalg.qr(target.T)
        left, values, right = torch.linalg.svd(rx @ ry.T)
        left, right = qx @ left, right @ qy.T
    else:
        left, values, right = torch.linalg.svd(source.T @ target, full_matrices=False)
    # The product squares the anchors' spectrum, so its own rounding is relative to |U_x| |U_y|, not to sigma_1.
    scale = torch.linalg.matrix_norm(source, 2) * torch.linalg.matrix_norm(target, 2)
    keep = values > rank_tolerance((source.shape[1], target.shape[1], source.shape[0]), float(scale))
    rotation: Tensor = left[:, keep] @ right[keep]
    return rotation


def ridge(source: Float64[Tensor, "k dx"], target: Float64[Tensor, "k dy"], *, ridge: float) -> Float64[Tensor, "dx dy"]:
    """T = (U_x^T U_x + ridge I)^-1 U_x^T U_y, minimising |U_x T - U_y|^2 + ridge |T|^2.

    source  (k, d_x) and target (k, d_y): unit anchors, row i the same item in both; ridge >= 0 (0: least squares of least norm)
    Returns T (d_x, d_y). Raises InvalidOption. It is the graded family at (1, 0).
    """
    return graded.projector(source, power=1.0, ridge=ridge) @ target
