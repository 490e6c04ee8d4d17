"""`auto`: which method serves when the client names none. Today a fixed choice, measured in benchmarks/text_encoders.py."""

from __future__ import annotations

#: what the two powers of a good graded translator add up to: (0, 1), (1/2, 3/4) and (1, 1/4) are each near the best of their row
WHITENING = 1.25


def choose() -> str:
    """For vectors: graded (1, .25), the best of the independent methods on retrieval over text and images."""
    return "graded"


def decode_power(relative_power: float) -> float:
    """For relative vectors made with a power in [0, 1]: the graded decoder's power, which undoes what their encoding has not.

    Plain cosines (0) need the full inverse, 1; vectors encoded with power 1 need .25.
    """
    return min(1.0, WHITENING - relative_power)
