"""Which pairs that searches leave behind become anchors, and whether they help."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.quality.candidates import LINEAR_DEFAULT
from app.maths.translators import methods
from app.maths.translators.translator import apply

#: two items whose centred vectors have a larger cosine teach the same
EQUAL_COSINE = 0.95


def choose_different(
    anchors: Float[Tensor, "k d"], reads: Float[Tensor, "n d"], most: int
) -> list[int]:
    """Which rows of `reads` to add to the anchors: the first `most` that are unlike all before.

    A row is left out when its cosine with an anchor, or with a row that was chosen, is above
    EQUAL_COSINE, both less the mean of the anchors. Vectors are in the encoder's units.
    """
    mean = anchors.double().mean(dim=0)
    known = torch.nn.functional.normalize(anchors.double() - mean)
    rows = torch.nn.functional.normalize(reads.double() - mean)
    alive = rows.any(dim=1) & ~((rows @ known.T) > EQUAL_COSINE).any(dim=1)
    chosen: list[int] = []
    while len(chosen) < most and bool(alive.any()):
        first = int(alive.int().argmax())
        chosen.append(first)
        alive &= rows @ rows[first] <= EQUAL_COSINE
        alive[first] = False
    return chosen


def held_out_cosine(
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    held_source: Float[Tensor, "n dx"],
    held_target: Float[Tensor, "n dy"],
) -> float:
    """The mean cosine of translations with native vectors (n,), by a linear fit of k anchors.

    All in the encoders' own units. Raises DegenerateAnchors for anchors that are all equal.
    """
    method, given = LINEAR_DEFAULT
    options = methods.resolve(method, given, anchors=len(source))
    spaces = fit_space(source), fit_space(target)
    translated = apply(methods.fit(method, *spaces, options), held_source.float()).vectors
    native = held_target.double()
    return float(torch.nn.functional.cosine_similarity(translated.double(), native).mean())
