"""Plain definitions of what the product computes in other, faster ways; tests and benchmarks
compare with them.
"""

from __future__ import annotations

from jaxtyping import Float, Float64
from torch import Tensor

from app.maths.geometry.space import Space, check_vectors, normalise
from app.maths.quality.metrics import DEFAULT_NEIGHBOURS, evaluate


def relative(vectors: Float[Tensor, "n d"], space: Space) -> Float64[Tensor, "n k"]:
    """The k cosines of x to the anchors, both centred on the anchors' mean: n(x) U^T.

    vectors  (n, d), the encoder's own units
    Returns (n, k), dimensionless, each in [-1, 1]. Invariant to a rotation and to a positive
    scaling of the encoder's space.
    Raises as `check_vectors`. Source: Moschella et al. 2023, equation 2; centred as in Maiorca et
    al. 2024.
    """
    check_vectors(vectors, dim=space.dim)
    unit, _ = normalise(vectors.double(), space.mean)
    return unit @ space.unit.T


def measures(
    translated: Float[Tensor, "n d"], native: Float[Tensor, "n d"]
) -> dict[str, Float64[Tensor, " n"]]:
    """Every measure of every item, at min(10, n - 1) neighbours, of n >= 2 centred vectors."""
    k = min(DEFAULT_NEIGHBOURS, len(translated) - 1)
    return evaluate({"translated": translated}, native, k)["translated"]
