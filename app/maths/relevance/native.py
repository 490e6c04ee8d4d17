"""The order of candidates, some with a native vector: one by the new encoder itself.

A native score and a score of a translation do not lie on one scale: a translation shrinks cosines.
So the first candidates in the best order known, the *block*, are ordered among themselves, and the
others follow in their old order.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

#: Weight of the native score; the old one has the rest. Of .25, .5 and .75, .5 was the best on
#: Cranfield where both encoders are good, and never below the old encoder with 20 texts.
NATIVE_WEIGHT = 0.5


def order_block(
    base: Float64[Tensor, " m"],
    native: Float64[Tensor, " m"],
    block: int | Bool[Tensor, " m"],
    old: Float64[Tensor, " m"] | None = None,
    weight: float = NATIVE_WEIGHT,
) -> tuple[Int64[Tensor, " m"], Float64[Tensor, " m"]]:
    """Positions of one query's candidates, best first, and their scores in that order.

    base    (m,) the best scores known before, larger is nearer
    native  (m,) cosines of the query and native vectors; NaN where there is none
    block   (m,) the candidates of the block, or their number: the first ones by `base`
    old     (m,) cosines of the old query and the stored vectors, which count too; None: they do not
    weight  w of the native scores; the old ones have the rest

    Inside the block, s = native, or with `old` s = w z(native) + (1 - w) z(old), where z is the
    score less the mean of the block, divided by its standard deviation. A candidate of the block
    without a native vector gets the native score that `base` predicts: mean + deviation * z(base),
    both over those that have one. Candidates behind the block get no score above the block's last.
    """
    first = base.sort(descending=True, stable=True).indices
    inside = torch.arange(len(first)) < block if isinstance(block, int) else block[first]
    block, rest = first[inside], first[~inside]
    scored = native[block]
    known = ~scored.isnan()
    if not bool(known.any()):
        return first, base[first]
    mean, deviation = scored[known].mean(), scored[known].std(correction=0)
    predicted = mean + deviation * _z(base[block], base[block][known])
    new = torch.where(known, scored, predicted)
    if old is not None:
        new = weight * _z(new, new) + (1.0 - weight) * _z(old[block], old[block])
    order = new.sort(descending=True, stable=True).indices
    last = new.min()
    behind = base[rest]
    if old is not None and len(rest):
        behind = last - (behind.max() - behind)
    return torch.cat([block[order], rest]), torch.cat([new[order], behind.clamp(max=last)])


def _z(values: Float64[Tensor, " n"], reference: Float64[Tensor, " m"]) -> Float64[Tensor, " n"]:
    """The values less the mean of the reference, by its deviation; zeros where that is zero."""
    deviation = reference.std(correction=0)
    rounding = reference.abs().max() * 1e-12
    if deviation <= rounding:
        return torch.zeros_like(values)
    return (values - reference.mean()) / deviation
