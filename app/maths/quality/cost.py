"""What a fit costs, known before it starts: seconds of one core.

Counts of multiplications times measured seconds for each, so right within a factor of about 3.
"""

from __future__ import annotations

from app.maths.translators.inverse import most_kept
from app.maths.translators.kernel import LANDMARKS, MAX_GCV_ANCHORS
from app.maths.translators.methods import METHODS, Options

#: seconds of an SVD of (m, n), n <= m: for each m n^2, and for each n^3
SVD_TALL_S, SVD_SQUARE_S = 2.7e-10, 4.8e-10

#: seconds of a multiplication in a product of matrices: float64, and float32
PRODUCT_S, SINGLE_S = 1e-10, 5e-11

#: seconds of a step of farthest point sampling, and for each of the anchors it looks at
PRUNING_STEP_S, PRUNED_ANCHOR_S = 5e-5, 5e-8


def svd_seconds(rows: int, columns: int) -> float:
    """The seconds of one SVD of (rows, columns)."""
    n, m = sorted((rows, columns))
    return SVD_TALL_S * m * n * n + SVD_SQUARE_S * n * n * n


def fit_seconds(method: str, anchors: int, dims: tuple[int, int], options: Options) -> float:
    """The seconds of fitting a method to anchors (anchors, dims[0]) and (anchors, dims[1]).

    `irp` with a `delta` is counted as if it kept almost all anchors: how many it keeps depends on
    their numbers.
    """
    x, y = dims
    spectra = svd_seconds(anchors, x) + svd_seconds(anchors, y)
    if METHODS[method].core is None:
        return svd_seconds(anchors, y) / 2 + _kernel_seconds(anchors, dims)
    joined = PRODUCT_S * anchors * x * y
    if method == "irp":
        step = PRUNING_STEP_S + PRUNED_ANCHOR_S * anchors
        kept = anchors if options["delta"] is not None else min(anchors, most_kept(y))
        subspace = kept * step + svd_seconds(kept, y) + SINGLE_S * anchors * anchors * y
        return spectra + joined + int(options["omega"]) * subspace
    if method == "irp-ridge":
        return spectra + joined + svd_seconds(anchors, y)
    return spectra + joined + svd_seconds(min(anchors, x), min(anchors, y))


def _kernel_seconds(anchors: int, dims: tuple[int, int]) -> float:
    landmarks = min(anchors, LANDMARKS)
    solved = landmarks * (sum(dims) + (2 * landmarks if anchors > LANDMARKS else 0))
    chosen = SVD_SQUARE_S / 4 * min(landmarks, MAX_GCV_ANCHORS) ** 3
    return PRODUCT_S * (anchors * solved + landmarks**3) + chosen
