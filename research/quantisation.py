"""What the theory of quantised relative vectors promises, to be compared with what is measured."""

from __future__ import annotations

import math
from fractions import Fraction

from app.maths.geometry.quantise import largest_code


def most_steps(distortion: float, *, bits: int) -> int:
    """ceil(e / D), exactly: how far apart the codes of cosines are at most that differ by e =
    `distortion` >= 0.

    Raises InvalidOption.
    """
    return math.ceil(Fraction(distortion) * largest_code(bits))
