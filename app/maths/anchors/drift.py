"""Changes of an encoder over time, from embeddings of the same items then and now.

Row i of `old` and of `new` (k, d) is one item, each in the encoder's own units of its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from app.maths.geometry.space import row_norms
from app.maths.quality.metrics import unit

DriftVerdict = Literal["unchanged", "rescaled", "changed"]

#: |new - old| / |old| of one item: the first covers batches of other sizes, the second numbers in
#: half precision, which rounds to 3e-4 (float16) or 2e-3 (bfloat16).
SAME_DEVIATION, HALF_DEVIATION = 1e-4, 4e-3

#: A model that computes in half precision deviates by about 1e-2, as noise may.
NEAR_DEVIATION = 2e-2

#: A row may deviate by this many times the noise, the most that a few repeated rows showed: of
#: eight normal deviations, the largest is seldom below half of the largest of fifty.
NOISE_FACTOR = 3.0

#: Rows shorter than this share of the mean length count as that long, because half precision rounds
#: them to nothing.
SHORT_SHARE = 1e-3


@dataclass(frozen=True, eq=False)
class Drift:
    """The change of k vectors.

    deviations  (k,) |new - old| / |old|
    changed     (k,) which rows have changed: none for `rescaled`
    """

    verdict: DriftVerdict
    deviations: Float64[Tensor, " k"]
    changed: Bool[Tensor, " k"]


def compare_embeddings(
    old: Float[Tensor, "k d"], new: Float[Tensor, "k d"], *, noise: float = 0.0
) -> Drift:
    """The change of the vectors.

    noise  max of |new' - new| / |new| over rows that one encoder embedded twice, in other batches

    A row is unchanged when |new - old| <= b |old|, with b = max(b0, NOISE_FACTOR noise), where b0
    is SAME_DEVIATION if half of the rows are that near, else HALF_DEVIATION, because rounding
    affects all rows. A move by 1 % is found while the noise is below 1 % / NOISE_FACTOR.
    `unchanged`: every row is unchanged; `rescaled`: half of them or fewer are, but every row of
    new / |new| and old / |old| is; `changed`: neither.
    """
    old, new = old.double(), new.double()
    deviation = deviations(old, new)
    differ = _changed_rows(deviation, noise)
    if not bool(differ.any()):
        return Drift("unchanged", deviation, differ)
    if float(differ.double().mean()) <= 0.5:
        return Drift("changed", deviation, differ)
    turned = _changed_rows(deviations(unit(old), unit(new)), noise)
    return Drift("changed" if bool(turned.any()) else "rescaled", deviation, turned)


def deviations(old: Float[Tensor, "k d"], new: Float[Tensor, "k d"]) -> Float64[Tensor, " k"]:
    """|new - old| / |old| of each row."""
    old, new = old.double(), new.double()
    lengths = row_norms(old)
    least = max(SHORT_SHARE * float(lengths.mean()), torch.finfo(torch.float32).tiny)
    return row_norms(new - old) / lengths.clamp_min(least)


def _changed_rows(deviations: Float64[Tensor, " k"], noise: float) -> Bool[Tensor, " k"]:
    """Which rows deviate by more than their bound."""
    bound = (
        SAME_DEVIATION
        if float((deviations <= SAME_DEVIATION).double().mean()) >= 0.5
        else HALF_DEVIATION
    )
    return deviations > max(bound, NOISE_FACTOR * noise)
