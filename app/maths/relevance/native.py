"""One score for each candidate of a query, by all that is known: old, translated and native scores.

A translation shrinks cosines, so a native score and one of a translation do not lie on one scale.
The native scores that are there predict those that are not, and each further text replaces a
prediction by what it predicted.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

#: What is assumed before a text is known: the slope of native scores, and the texts it counts as.
PRIOR_SLOPE, PRIOR_TEXTS = 1.0, 2.0

#: Least correlation that is assumed.
LEAST_TRUST = 0.02


def blend(
    native: Float64[Tensor, "*q m"],
    guess: Float64[Tensor, "*q m"],
    old: Float64[Tensor, "*q m"] | None = None,
    *,
    weight: float = 1.0,
    trust: float = 1.0,
) -> Float64[Tensor, "*q m"]:
    """The scores of each query's candidates (.., m), larger is nearer.

    native  (.., m) cosines of the query and native vectors; NaN where there is none
    guess   (.., m) scores that predict the native ones: those of translations, else the old ones;
            NaN where there is no candidate, whose score is NaN too
    old     (.., m) cosines of the old query and the stored vectors, which count too; None: they do
            not
    weight  w of the native scores; the old ones have the rest
    trust   r, the correlation of guess and native that is assumed before a text is known

    n is the native score; where there is none, it is on the line of least squares n = a + b guess
    through the others, with PRIOR_TEXTS more of the slope PRIOR_SLOPE and the correlation r, whose
    guesses vary as those of all candidates. Without `old`, n is the score. With `old` it is
    w (n - mean) / deviation + (1 - w) z(old): mean and deviation over all candidates, and the
    deviation has that from the line where n is on it. z(x) = (x - mean(x)) / deviation(x).
    """
    if not guess.shape[-1]:
        return guess
    there = ~guess.isnan()
    known = there & ~native.isnan()
    count = known.sum(-1, keepdim=True)
    fitted = known | (there & (count == 0))
    dx = guess - _mean(guess, fitted)
    mean = _mean(native.where(known, guess), fitted)
    on_x, on_y = dx.where(known, 0.0), (native - mean).where(known, 0.0)
    prior = PRIOR_TEXTS * _mean((guess - _mean(guess, there)).square(), there)
    total = on_x.square().sum(-1, keepdim=True) + prior
    slope = ((on_x * on_y).sum(-1, keepdim=True) + prior * PRIOR_SLOPE).clamp(min=0.0) / total
    slope = slope.where(total > 1e-24 * _largest(guess).square(), 0.0)
    made = native.where(known, mean + slope * dx)
    if old is None:
        return made.where(count > 0, guess)
    assumed = PRIOR_SLOPE**2 * prior * (max(trust, LEAST_TRUST) ** -2 - 1.0)
    rest = (on_y - slope * on_x).square().sum(-1, keepdim=True) + assumed
    rest = rest / (count + PRIOR_TEXTS) * _mean((~known).double(), there)
    new, z = standardised(made, there, rest), standardised(old, there)
    return weight * new + (1.0 - weight) * z


def standardised(
    values: Float64[Tensor, "*q m"],
    counted: Bool[Tensor, "*q m"],
    more: Float64[Tensor, "*q 1"] | float = 0.0,
) -> Float64[Tensor, "*q m"]:
    """The values less their mean, by their deviation, whose square has `more`; zeros where it is
    zero, and NaN where they are not counted.
    """
    centred = (values - _mean(values, counted)).where(counted, torch.nan)
    deviation = (_mean(centred.square(), counted) + more).sqrt()
    return torch.where(deviation > 1e-12 * _largest(values), centred / deviation, centred * 0.0)


def _mean(
    values: Float64[Tensor, "*q m"], counted: Bool[Tensor, "*q m"]
) -> Float64[Tensor, "*q 1"]:
    count = counted.sum(-1, keepdim=True).clamp(min=1)
    return values.where(counted, 0.0).sum(-1, keepdim=True) / count


def _largest(values: Float64[Tensor, "*q m"]) -> Float64[Tensor, "*q 1"]:
    return values.nan_to_num().abs().amax(-1, keepdim=True)
