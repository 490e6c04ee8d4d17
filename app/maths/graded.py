"""The graded family: both sides whitened by a chosen power, each from its own anchors alone.

With C = U^T U + ridge I:   projector E = C^-a U^T  (d x k),   decoder D = U C^-b  (k x d),   T = E_x D_y.
(a, b) = (0, 1) is the paper's inverse with a ridge, (1, 0) ridge regression of unit anchors on unit anchors,
(1/2, 1/2) the product of the two Parseval frames. Nothing is fitted to a pair of spaces, so N spaces need N projectors and
N decoders. Ours; measured in `benchmarks/text_encoders.py`.
"""

from __future__ import annotations

from jaxtyping import Float64
from torch import Tensor

from app.errors import InvalidOption
from app.maths.spectrum import whitened


def projector(unit: Float64[Tensor, "k d"], *, power: float, ridge: float) -> Float64[Tensor, "d k"]:
    """E = (U^T U + ridge I)^-power U^T, into relative coordinates: n(x) E. Power 0 gives the paper's cosines.

    unit (k, d_x), the source's unit anchors; power in [0, 1]; ridge >= 0. Returns (d_x, k). Raises InvalidOption.
    """
    try:
        return whitened(unit, power=power, ridge=ridge).T
    except InvalidOption as error:
        raise error.at("options.encode_power") from None


def decoder(unit: Float64[Tensor, "k d"], *, power: float, ridge: float) -> Float64[Tensor, "k d"]:
    """D = U (U^T U + ridge I)^-power, back out of relative coordinates: r D. Power 1 is `irp-ridge`.

    unit (k, d_y), the target's unit anchors; power in [0, 1]; ridge >= 0. Returns (k, d_y). Raises InvalidOption.
    """
    try:
        return whitened(unit, power=power, ridge=ridge)
    except InvalidOption as error:
        raise error.at("options.decode_power") from None
