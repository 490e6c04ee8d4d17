"""`auto`: which method serves when the client names none. Today a fixed, measured choice; DESIGN section 2b has the table."""

from __future__ import annotations


def choose() -> str:
    """For vectors: graded (1, .25), the best of the independent methods on retrieval over text and images."""
    return "graded"


def choose_for_relative(relative_power: float) -> str:
    """For relative vectors: plain cosines (power 0) want the full inverse, whitened ones the graded decoder."""
    return "irp-ridge" if relative_power == 0 else "graded"
