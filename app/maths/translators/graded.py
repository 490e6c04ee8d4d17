"""The graded family: each side is whitened by a separate power, computed from its own anchors
alone.

With C = U^T U + ridge I: projector E = C^-a U^T (d x k), decoder D = U C^-b (k x d), T = E_x D_y.
(a, b) = (0, 1) is the paper's inverse with a ridge, (1, 0) ridge regression of unit anchors on unit
anchors, (1/2, 1/2) the product of the two Parseval frames. No part is fitted to a pair of spaces,
so N spaces need N projectors and N decoders. Our own family; `benchmarks/quality` measures it,
and docs/explanation/methods.md explains it.
"""

from __future__ import annotations

from jaxtyping import Float64
from torch import Tensor

from app.maths.geometry.pair import Core, Pair
from app.maths.geometry.spectrum import check_power, check_ridge, whitened, whitened_values


def projector(
    unit: Float64[Tensor, "k d"], *, power: float, ridge: float | None, noise: float = 0.0
) -> Float64[Tensor, "d k"]:
    """E = (U^T U + ridge I)^-power U^T, into relative coordinates: n(x) E. Power 0 gives the
    paper's cosines.

    unit   (k, d_x), the source's unit anchors
    power  in [0, 1]
    ridge  >= 0, or None for `spectrum.usual_ridge` of these anchors
    noise  as in `kept_svd`
    Returns (d_x, k). Raises InvalidOption.
    """
    return whitened(unit, power=power, ridge=ridge, noise=noise, field="options.encode_power").T


def decoder(
    unit: Float64[Tensor, "k d"], *, power: float, ridge: float | None, noise: float = 0.0
) -> Float64[Tensor, "k d"]:
    """D = U (U^T U + ridge I)^-power, from relative coordinates r: r D. Power 1 is `irp-ridge`.

    unit   (k, d_y), the target's unit anchors
    power  in [0, 1]
    ridge  >= 0, or None for `spectrum.usual_ridge` of these anchors
    noise  as in `kept_svd`
    Returns (k, d_y). Raises InvalidOption.
    """
    return whitened(unit, power=power, ridge=ridge, noise=noise, field="options.decode_power")


def core(pair: Pair, *, encode_power: float, decode_power: float, ridge: float | None) -> Core:
    """F = diag(s_x (s_x^2 + ridge)^-a) M diag(s_y (s_y^2 + ridge)^-b) (r_x, r_y): T = V_x F V_y^T =
    E_x D_y.

    encode_power, decode_power  a and b, each in [0, 1]
    ridge                       as above; None: each space uses its own
    Raises InvalidOption.
    """
    check_power(encode_power, "options.encode_power")
    check_power(decode_power, "options.decode_power")
    check_ridge(ridge)
    left = whitened_values(pair.x, dim=pair.source.dim, power=encode_power, ridge=ridge)
    right = whitened_values(pair.y, dim=pair.target.dim, power=decode_power, ridge=ridge)
    return left[:, None] * pair.overlap * right
