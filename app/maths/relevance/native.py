"""One score for each candidate of a query, by all that is known: old, translated and native scores.

A translation shrinks cosines, so a native score and one of a translation do not lie on one scale.
The native scores that are there predict those that are not, and each further text replaces a
prediction by what it predicted.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

#: What is assumed before a text is known: the slope of native scores, and the texts it counts as.
PRIOR_SLOPE, PRIOR_TEXTS = 1.0, 2.0

#: Least correlation that is assumed.
LEAST_TRUST = 0.02


def blend(
    native: Float64[Tensor, " m"],
    guess: Float64[Tensor, " m"],
    old: Float64[Tensor, " m"] | None = None,
    *,
    weight: float = 1.0,
    trust: float = 1.0,
) -> Float64[Tensor, " m"]:
    """The scores (m,) of one query's candidates, larger is nearer.

    native  (m,) cosines of the query and native vectors; NaN where there is none
    guess   (m,) scores that predict the native ones: those of translations, else the old ones
    old     (m,) cosines of the old query and the stored vectors, which count too; None: they do not
    weight  w of the native scores; the old ones have the rest
    trust   r, the correlation of guess and native that is assumed before a text is known

    n is the native score; where there is none, it is on the line of least squares n = a + b guess
    through the others, with PRIOR_TEXTS more of the slope PRIOR_SLOPE and the correlation r, whose
    guesses vary as those of all candidates. Without `old`, n is the score. With `old` it is
    w (n - mean) / deviation + (1 - w) z(old): mean and deviation over all candidates, and the
    deviation has that from the line where n is on it. z(x) = (x - mean(x)) / deviation(x).
    """
    known = ~native.isnan()
    if not len(native) or (old is None and not bool(known.any())):
        return guess
    spread = guess.var(correction=0)
    x, y = (guess[known], native[known]) if bool(known.any()) else (guess, guess)
    dx, dy = guess[known] - x.mean(), native[known] - y.mean()
    prior = PRIOR_TEXTS * spread
    total = dx.square().sum() + prior
    slope = torch.zeros_like(spread)
    if total > 1e-24 * guess.abs().amax().square():
        slope = (((dx * dy).sum() + prior * PRIOR_SLOPE) / total).clamp(min=0.0)
    made = torch.where(known, native, y.mean() + slope * (guess - x.mean()))
    if old is None:
        return made
    assumed = PRIOR_SLOPE**2 * prior * (max(trust, LEAST_TRUST) ** -2 - 1.0)
    rest = ((dy - slope * dx).square().sum() + assumed) / (len(dx) + PRIOR_TEXTS)
    deviation = (made.var(correction=0) + rest * (~known).double().mean()).sqrt()
    centred = made - made.mean()
    new = centred / deviation if deviation > 1e-12 * made.abs().amax() else torch.zeros_like(made)
    return weight * new + (1.0 - weight) * _z(old)


def _z(values: Float64[Tensor, " m"]) -> Float64[Tensor, " m"]:
    """The values less their mean, by their deviation; zeros where that is zero."""
    deviation = values.std(correction=0)
    if not deviation > values.abs().amax() * 1e-12:
        return torch.zeros_like(values)
    return (values - values.mean()) / deviation
