"""Which encoder a sample of a store's vectors comes from, judged by the anchors of each encoder.

All vectors are scaled to unit length first, because some stores keep no lengths. For an encoder
with unit anchors a_j, their mean m, and n(x) = (x - m) / |x - m|, the nearness of a sample is

    t = mean over its rows x of max_j n(x) . n(a_j).

A sample of the encoder's own space is about as near as the anchors are to each other (t_own, each
anchor without itself). A sample of an unrelated space is as near as the same sample with its
coordinates permuted (t_none): that keeps the lengths, the spread and the anisotropy of the sample,
and destroys its place in the space. The likeness is

    likeness = (t - t_none) / (t_own - t_none):  1 for the encoder's own space, 0 for an unrelated.

Likeness falls where the anchors are of another corpus. Covariances still align there, so that

    alignment = tr(C_sample C_anchors),  standardised by its values under the same permutations,

is a second, more sensitive sign, which relatives of the encoder show too.

A store may hold rows of several encoders, because a model changed and its name did not. The
likeness of a row has max_j n(x) . n(a_j) for t. A row is far from an encoder below 95 of 100
permuted rows, but no nearer than all but 2 of 100 of the encoder's own anchors. On Cranfield, 90 of
100 rows of the anchors' corpus and encoder are at .33 to 1.88, and 90 of 100 of an unrelated
encoder at -.07 to .14. Anchors of another corpus distinguish no rows, and relatives of the expected
encoder count as that one.

Permutations as a null distribution: Hoeffding 1951.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from app.maths.geometry.space import draw_rows, normalise

SpaceVerdict = Literal["matches", "mixed", "another", "unknown"]

#: a sample this like an encoder's anchors is taken for that encoder's
LIKE = 0.5

#: standard deviations by which covariances must align to point at an encoder, and below which they
#: do not
ALIGNED_Z, UNALIGNED_Z = 6.0, 3.0

#: by how much, in likeness and in standard errors, another encoder must be more like the sample
#: than the expected one: anchors of another corpus, or one encoder under two names, lead by less
LEAST_LEAD, MORE_LIKE_Z = 0.1, 3.0

#: shares of permuted rows below, and of own anchors above, the likeness that is far
FAR_PERMUTED, NEAR_OWN = 0.95, 0.98

#: a row that is far from the expected encoder is another's with this lead
ROW_LEAD = 0.3

#: least share of rows of the expected encoder in a mixed sample, and least share, and number, of
#: those of another
LEAST_EXPECTED, LEAST_SHARE, FEWEST_ROWS = 0.5, 0.01, 4

#: shares of rows unlike every encoder that are worth a warning, and that make a mixture: in a good
#: store it is 1 in 100
UNUSUAL_SHARE, MIXED_SHARE = 0.05, 0.2

#: fewer different rows or anchors are not judged
FEWEST_MATCHED = 20

#: most rows and most anchors of each encoder that are compared
MAX_MATCHED_ROWS, MAX_MATCHED_ANCHORS = 512, 1024

#: permutations of the coordinates; their mean nearness varies less than their alignment
PERMUTATIONS, NEAR_PERMUTATIONS = 20, 4

#: an encoder is judged where its own anchors are this much nearer to each other than t_none
LEAST_NEARNESS = 0.05


@dataclass(frozen=True)
class SpaceLikeness:
    """How much a sample looks like one encoder's vectors.

    likeness   1: as its own anchors; 0: as an unrelated space
    alignment  of the covariances, in standard deviations
    share      of the rows that look like it; those of its relatives count for the expected one
    """

    encoder: str
    likeness: float
    alignment: float
    share: float


@dataclass(frozen=True)
class SpaceMatch:
    """The encoder that a sample seems to come from.

    verdict    matches: the expected encoder; mixed: that one, and others; another: `likeliest`,
               which is not the expected one; unknown: too few rows, anchors of another corpus, or
               an encoder without anchors here
    likeliest  the encoder that the sample looks most like; None if it looks like none
    encoders   the compared encoders, the likeliest first
    rows       number of rows that were compared
    unlike     share of them that look like none of the encoders
    foreign    rows of the sample that look like another encoder, or like none where those are more
               than in a good store, the least like the expected one first; () unless the others are
               like the expected one
    """

    verdict: SpaceVerdict
    likeliest: str | None
    encoders: tuple[SpaceLikeness, ...]
    rows: int
    unlike: float
    foreign: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _RowShares:
    """shares: the likeness of each row (n,). far: rows of less are far from the encoder."""

    shares: Float64[Tensor, " n"]
    far: float
    alignment: float


def match_space(
    sample: Float[Tensor, "n d"],
    anchors: Mapping[str, Sequence[Tensor]],
    expected: str,
) -> SpaceMatch:
    """Find the encoder that a sample (n, d) of a store comes from.

    anchors   sets of raw anchors (k, d) of each encoder of that dimension, by the encoder's name;
              the set that the sample is most like speaks for the encoder
    expected  the encoder that the store should hold
    Rows of zeros are left out. Raises nothing; an encoder that cannot be judged is left out.
    """
    rows, places = _distinct(sample, MAX_MATCHED_ROWS)
    compared: dict[str, _RowShares] = {}
    if len(rows) >= FEWEST_MATCHED:
        for name, sets in anchors.items():
            each = [_compare(rows, _distinct(of, MAX_MATCHED_ANCHORS)[0]) for of in sets]
            if found := [one for one in each if one is not None]:
                compared[name] = max(found, key=lambda one: float(one.shares.mean()))
    owner = _owners(compared, expected, len(rows))
    shares = {name: float((owner == place).double().mean()) for place, name in enumerate(compared)}
    ranked = sorted(
        (
            SpaceLikeness(name, float(each.shares.mean()), each.alignment, shares[name])
            for name, each in compared.items()
        ),
        key=lambda each: -each.likeness,
    )
    verdict, likeliest = _judge(compared, ranked, expected)
    unlike = float((owner < 0).double().mean()) if compared else 0.0
    foreign: tuple[int, ...] = ()
    own = compared.get(expected)
    if own is not None:
        mine = owner == list(compared).index(expected)
        if bool(mine.any()) and float(own.shares[mine].mean()) >= LIKE:
            few = FEWEST_ROWS / len(rows)
            is_foreign = ~mine if unlike >= max(UNUSUAL_SHARE, few) else ~mine & (owner >= 0)
            order = own.shares.argsort(stable=True)
            foreign = tuple(places[order[is_foreign[order]]].tolist())
            least = max(LEAST_SHARE, few)
            several = any(share >= least for name, share in shares.items() if name != expected)
            if (several or unlike >= MIXED_SHARE) and shares[expected] >= LEAST_EXPECTED:
                verdict = "mixed"
    return SpaceMatch(verdict, likeliest, tuple(ranked), len(rows), unlike, foreign)


def _owners(compared: Mapping[str, _RowShares], expected: str, count: int) -> Int64[Tensor, " n"]:
    """The place in `compared` of the encoder that each row looks like; -1 for none."""
    if not compared:
        return torch.full((count,), -1)
    table = torch.stack([each.shares for each in compared.values()])
    far = table < table.new_tensor([[each.far] for each in compared.values()])
    best, owner = table.max(dim=0)
    if expected in compared:
        place = list(compared).index(expected)
        foreign = far[place] & (best - table[place] >= ROW_LEAD)
        owner = torch.where(foreign, owner, place)
    return torch.where(far.gather(0, owner[None])[0], -1, owner)


def _judge(
    compared: Mapping[str, _RowShares], ranked: list[SpaceLikeness], expected: str
) -> tuple[SpaceVerdict, str | None]:
    """Return the verdict, and the likeliest encoder."""
    if not ranked:
        return "unknown", None
    best, own = ranked[0], compared.get(expected)
    if best.likeness >= LIKE:
        if own is None:
            return "another", best.encoder
        ahead = compared[best.encoder].shares - own.shares
        error = float(ahead.std()) / len(ahead) ** 0.5
        if float(ahead.mean()) <= max(LEAST_LEAD, MORE_LIKE_Z * error):
            return "matches", expected
        return "another", best.encoder
    aligned = max(ranked, key=lambda each: each.alignment)
    if aligned.alignment < ALIGNED_Z:
        return "unknown", None
    clear = own is not None and own.alignment < UNALIGNED_Z
    return "another" if clear else "unknown", aligned.encoder


def _compare(rows: Float64[Tensor, "n d"], anchors: Float64[Tensor, "k d"]) -> _RowShares | None:
    """Compare unit rows with unit anchors; None where the anchors do not allow it."""
    if len(anchors) < FEWEST_MATCHED:
        return None
    rows, anchors = rows.float(), anchors.float()  # as precise as vectors of stores
    mean = anchors.mean(dim=0)
    unit, _ = normalise(anchors, mean)
    own = unit @ unit.T
    own.fill_diagonal_(-torch.inf)
    own = own.amax(dim=1)
    near_own = float(own.mean())
    first, second = (each.T @ each for each in (rows - rows.mean(dim=0), anchors - mean))

    def nearest(order: Tensor) -> Float32[Tensor, " n"]:
        return (normalise(rows[:, order], mean)[0] @ unit.T).amax(dim=1)

    def aligned(order: Tensor) -> float:  # of the covariances, by products of few numbers
        return float(torch.dot(first[order[:, None], order].flatten(), second.flatten()))

    generator, dim = torch.Generator().manual_seed(0), rows.shape[1]
    orders = [torch.randperm(dim, generator=generator) for _ in range(PERMUTATIONS)]
    permuted = torch.cat([nearest(order) for order in orders[:NEAR_PERMUTATIONS]])
    near_none = float(permuted.mean())
    if near_own - near_none < LEAST_NEARNESS:
        return None
    null = torch.tensor([aligned(order) for order in orders], dtype=torch.float64)
    deviation = max(float(null.std()), 1e-12 * float(null.mean()), 1e-300)
    far = min(float(permuted.quantile(FAR_PERMUTED)), float(own.quantile(1.0 - NEAR_OWN)))
    return _RowShares(
        shares=(nearest(torch.arange(dim)).double() - near_none) / (near_own - near_none),
        far=(far - near_none) / (near_own - near_none),
        alignment=(aligned(torch.arange(dim)) - float(null.mean())) / deviation,
    )


def _distinct(
    vectors: Float[Tensor, "n d"], most: int
) -> tuple[Float64[Tensor, "m d"], Int64[Tensor, " m"]]:
    """At most `most` different directions, drawn at random, as unit vectors, and the first row of
    each; no zeros.
    """
    if len(vectors) > most:
        rows = draw_rows(len(vectors), most).to(vectors.device)
    else:
        rows = torch.arange(len(vectors), device=vectors.device)
    rows = rows[vectors[rows].double().abs().amax(dim=1) > 0]
    unit = torch.nn.functional.normalize(vectors[rows].double(), dim=1, eps=1e-300)
    distinct, of = torch.unique(unit, dim=0, return_inverse=True)
    first = rows.new_full((len(distinct),), len(vectors)).scatter_reduce(0, of, rows, "amin")
    return distinct, first
