"""What the theory of quantised relative vectors guarantees, to compare with measurements."""

from __future__ import annotations

import math
from fractions import Fraction

from app.maths.geometry.quantise import largest_code


def most_steps(distortion: float, *, bits: int) -> int:
    """ceil(e / D), exactly: the largest difference between the codes of cosines that differ by e.

    e is `distortion` >= 0. Raises InvalidOption.
    """
    return math.ceil(Fraction(distortion) * largest_code(bits))
