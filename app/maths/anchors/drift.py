"""Changes of an encoder over time, from embeddings of the same items then and now.

The kinds of change, from the mildest: equal up to rounding; other lengths; another orientation,
which a rotation explains; another space. Row i of `old` (k, d) and of `new` (k, d') is one item,
each in the encoder's own units of its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.anchors.coverage import reduce_to_span
from app.maths.anchors.mismatch import relatedness
from app.maths.geometry.sampling import draw_uniformly
from app.maths.geometry.space import fit_space, row_norms
from app.maths.quality.crossfit import FEWEST_DISTINCT, cross_fit
from app.maths.quality.metrics import cosine, do_nothing, unit
from app.maths.translators.methods import resolve

DriftVerdict = Literal["unchanged", "partly-changed", "rescaled", "rotated", "changed"]
Rounding = Literal["none", "float32", "half"]

#: |new - old| / |old| of one item: the first covers batches of other sizes, the second numbers in
#: half precision, which rounds to 3e-4 (float16) or 2e-3 (bfloat16).
SAME_DEVIATION, HALF_DEVIATION = 1e-4, 4e-3

#: A model that computes in half precision deviates by about 1e-2, as noise may. So small a
#: deviation does not hide a rotation or another order.
NEAR_DEVIATION = 2e-2

#: A row may deviate by this many times the noise, the most that a few repeated rows showed: of
#: eight normal deviations, the largest is seldom below half of the largest of fifty.
NOISE_FACTOR = 3.0

#: A rotation explains the new vectors from this mean held-out cosine on.
ROTATED_COSINE = 0.99

#: Rows shorter than this share of the mean length count as that long, because half precision rounds
#: them to nothing.
SHORT_SHARE = 1e-3

#: Rows are compared with each other up to this many multiplications k^2 d, and up to this many rows
#: (a table of 32 MiB). More rows are sampled.
MAX_PRODUCTS, MAX_COMPARED_ROWS = 2**27, 2048

#: With fewer distinct rows, chance can look like a rotation: unrelated vectors of 4,096 dimensions
#: also have cosines within NEAR_DEVIATION of each other (measured on normal ones: 11 of 400 pairs
#: at five rows at most, 2 at six, none at eight).
FEWEST_FOR_ROTATION = 8

#: From this dimension on, translators are fitted to vectors in a basis of these rows, because a
#: full matrix takes seconds. The translator is the same except the graded method's ridge, which
#: depends on the dimension.
WIDE_DIM = 4096


@dataclass(frozen=True)
class OldToNewQuality:
    """Mean cosines of `rows` items translated old -> new, each by a fit on the others, centred on
    the new vectors' mean.

    rotation    by the nearest rotation
    translator  by the graded method, with its mrr and recall, as in `crossfit.held_out_quality`
    nothing     of old vectors used as new ones, cut or padded
    """

    rows: int
    rotation: float
    translator: float
    mrr: float
    recall: float
    nothing: float


@dataclass(frozen=True, eq=False)
class Drift:
    """The change of k vectors.

    rounding    of an unchanged encoder: none (the same bits), float32 or half; None otherwise
    deviations  (k,) |new - old| / |old|, and cosines (k,); None where the dimensions differ
    changed     (k,) which rows have changed: none for `rescaled`; all for `rotated` and `changed`
    scale       median of |new| / |old|; None where half of the old vectors are zero
    held_out    None where it is not needed, below FEWEST_DISTINCT distinct rows, or where all
                vectors are one
    z           `mismatch.relatedness` of old and new, for `changed` alone
    moved       every new vector is another row's old one: the same vectors in another order
    """

    verdict: DriftVerdict
    rounding: Rounding | None
    deviations: Float64[Tensor, " k"] | None
    cosines: Float64[Tensor, " k"] | None
    changed: Bool[Tensor, " k"]
    scale: float | None
    held_out: OldToNewQuality | None = None
    z: float | None = None
    moved: bool = False


def compare_embeddings(
    old: Float[Tensor, "k d"], new: Float[Tensor, "k e"], *, noise: float = 0.0, seed: int = 0
) -> Drift:
    """The change of the vectors; `seed` draws the rows that are compared with each other where
    there are many.

    noise  max of |new' - new| / |new| over rows that one encoder embedded twice, in other batches

    A row is unchanged when |new - old| <= b |old|, with b = max(b0, NOISE_FACTOR noise), where b0
    is SAME_DEVIATION if half of the rows are that near, else HALF_DEVIATION, because rounding
    affects all rows. A move by 1 % is found while the noise is below 1 % / NOISE_FACTOR.
    `unchanged`: every row is unchanged; `partly-changed`: half of them or more; `rescaled`: every
    row of new / |new| and old / |old| is; `rotated`: `_is_rotation`; `changed`: none of these.
    """
    old, new = old.double(), new.double()
    size = len(old)
    no_row = torch.zeros(size, dtype=torch.bool, device=old.device)
    every_row = ~no_row
    scale = _median_scale(old, new)
    deviation = cosine_rows = None
    if old.shape[1] == new.shape[1]:
        deviation, cosine_rows = deviations(old, new), cosines(old, new)
        differ, bound = _changed_rows(deviation, noise)
        if not bool(differ.any()):
            rounding: Rounding = (
                "none"
                if torch.equal(old, new)
                else "float32"
                if bound == SAME_DEVIATION
                else "half"
            )
            return Drift("unchanged", rounding, deviation, cosine_rows, no_row, scale)
        if _at_most_half(differ):
            return Drift("partly-changed", None, deviation, cosine_rows, differ, scale)
        turned, _ = _changed_rows(deviations(unit(old), unit(new)), noise)
        if not bool(turned.any()):
            return Drift("rescaled", None, deviation, cosine_rows, no_row, scale)
        if _at_most_half(turned):
            return Drift("partly-changed", None, deviation, cosine_rows, turned, scale)
    rows = _compared_rows(old, new, seed)
    held_out = _cross_fitted(old[rows], new[rows])
    if _is_rotation(old[rows], new[rows], held_out):
        return Drift("rotated", None, deviation, cosine_rows, every_row, scale, held_out)
    moved, z = _is_reordered(old[rows], new[rows]), _relatedness_or_none(old[rows], new[rows])
    return Drift("changed", None, deviation, cosine_rows, every_row, scale, held_out, z, moved)


def deviations(old: Float[Tensor, "k d"], new: Float[Tensor, "k d"]) -> Float64[Tensor, " k"]:
    """|new - old| / |old| of each row."""
    old, new = old.double(), new.double()
    lengths = row_norms(old)
    least = max(SHORT_SHARE * float(lengths.mean()), torch.finfo(torch.float32).tiny)
    return row_norms(new - old) / lengths.clamp_min(least)


def cosines(old: Float[Tensor, "k d"], new: Float[Tensor, "k d"]) -> Float64[Tensor, " k"]:
    """The cosine of each row, about the origin; 1 of two zero rows, 0 of one."""
    old, new = old.double(), new.double()
    both_zero = (row_norms(old) == 0) & (row_norms(new) == 0)
    return torch.where(both_zero, 1.0, (unit(old) * unit(new)).sum(dim=1).clamp(-1.0, 1.0))


def reorder_deviation(old: Float[Tensor, "k d"], new: Float[Tensor, "k d"]) -> float:
    """The largest deviation of a row from the row that is nearest to it in direction on the other
    side, over both sides.

    Both directions count: one vector sent many times is near an old one, but the old ones are not
    near it.
    """
    old, new = old.double(), new.double()
    table = unit(old) @ unit(new).T
    largest = (deviations(old[table.argmax(dim=0)], new), deviations(new[table.argmax(dim=1)], old))
    return max(float(each.max()) for each in largest)


def cosine_correlation(old: Float[Tensor, "k d"], new: Float[Tensor, "k e"]) -> float:
    """Correlation of the centred cosines between different rows of either side; no rotation changes
    it. 0 below three rows.
    """
    tables = [unit(each.double() - each.double().mean(dim=0)) for each in (old, new)]
    above = torch.triu_indices(len(old), len(old), offset=1)
    if above.shape[1] < 2:
        return 0.0
    return float(
        torch.corrcoef(torch.stack([(each @ each.T)[above[0], above[1]] for each in tables]))[
            0, 1
        ].nan_to_num()
    )


def _changed_rows(
    deviations: Float64[Tensor, " k"], noise: float
) -> tuple[Bool[Tensor, " k"], float]:
    """Which rows deviate by more than their bound, and the bound."""
    bound = (
        SAME_DEVIATION
        if float((deviations <= SAME_DEVIATION).double().mean()) >= 0.5
        else HALF_DEVIATION
    )
    return deviations > max(bound, NOISE_FACTOR * noise), bound


def _at_most_half(rows: Bool[Tensor, " k"]) -> bool:
    return float(rows.double().mean()) <= 0.5


def _median_scale(old: Float64[Tensor, "k d"], new: Float64[Tensor, "k e"]) -> float | None:
    lengths = row_norms(old)
    if float(lengths.median()) == 0.0:
        return None
    known = lengths > 0
    return float((row_norms(new)[known] / lengths[known]).median())


def _compared_rows(old: Float64[Tensor, "k d"], new: Float64[Tensor, "k e"], seed: int) -> Tensor:
    """All rows, or as many as MAX_PRODUCTS and MAX_COMPARED_ROWS allow, in their order."""
    most = min(MAX_COMPARED_ROWS, int((MAX_PRODUCTS / max(old.shape[1], new.shape[1])) ** 0.5))
    return torch.tensor(sorted(draw_uniformly(len(old), size=min(most, len(old)), seed=seed)))


def _cross_fitted(
    old: Float64[Tensor, "m d"], new: Float64[Tensor, "m e"]
) -> OldToNewQuality | None:
    if len(old) < FEWEST_DISTINCT:
        return None
    x, y = (reduce_to_span(each) if each.shape[1] >= WIDE_DIM else each for each in (old, new))
    rotation, translator = (
        cross_fit(name, x, y, resolve(name, {}, anchors=len(x)))
        for name in ("procrustes", "graded")
    )
    if rotation is None or translator is None:
        return None
    quality = translator.translated
    return OldToNewQuality(
        quality.n,
        rotation.translated.cosine,
        quality.cosine,
        quality.mrr,
        quality.recall,
        _untranslated_cosine(old, new),
    )


def _untranslated_cosine(old: Float64[Tensor, "m d"], new: Float64[Tensor, "m e"]) -> float:
    """The mean cosine of old vectors, cut or padded, to the new ones, centred on the mean of the
    new ones.
    """
    mean = new.mean(dim=0)
    return cosine(do_nothing(old, new.shape[1]) - mean, new - mean)


def _is_rotation(
    old: Float64[Tensor, "m d"], new: Float64[Tensor, "m e"], held_out: OldToNewQuality | None
) -> bool:
    """Whether a rotation, with one scale and one shift, explains the new vectors, and no simpler
    change does.

    It does where a rotation maps rows that it was not fitted to onto their new vectors
    (ROTATED_COSINE). Where there are too few rows for a fit, it does if all centred cosines between
    rows are unchanged: |U U^T - U' U'^T| <= NEAR_DEVIATION |U U^T|. Below FEWEST_FOR_ROTATION
    distinct rows that is no proof.
    """
    if (_untranslated_cosine(old, new) if held_out is None else held_out.nothing) >= ROTATED_COSINE:
        return False
    if held_out is not None and held_out.rotation >= ROTATED_COSINE:
        return True
    if (
        held_out is None
        and min(len(torch.unique(each, dim=0)) for each in (old, new)) < FEWEST_FOR_ROTATION
    ):
        return False
    try:
        x, y = fit_space(old).unit, fit_space(new).unit
    except DegenerateAnchors:
        return False
    before, now = x @ x.T, y @ y.T
    return float((before - now).norm()) <= NEAR_DEVIATION * float(before.norm())


def _is_reordered(old: Float64[Tensor, "m d"], new: Float64[Tensor, "m e"]) -> bool:
    """Whether the directions are the same in another order: each row's nearest is another row, on
    both sides.
    """
    return (
        old.shape[1] == new.shape[1] and reorder_deviation(unit(old), unit(new)) <= NEAR_DEVIATION
    )


def _relatedness_or_none(old: Float64[Tensor, "m d"], new: Float64[Tensor, "m e"]) -> float | None:
    if len(old) < FEWEST_DISTINCT:
        return None
    try:
        x, y = fit_space(old).unit, fit_space(new).unit
    except DegenerateAnchors:
        return None
    return relatedness(x, y)
