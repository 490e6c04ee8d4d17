"""A map between two pools that have nothing known in common, and pairs that are made with it.

1. Both pools are divided into two halves at random. An attempt aligns a half of x with a half of y:
   matched components of both (components.py) give a first map; neighbours refine it.
2. Attempts alternate between the halves until one of each half agrees with one of the other
   (`compare_maps`). The halves share no item: there are many wrong maps and they differ,
   but only one right one.
3. The mean of both maps is refined on the whole pools, and pairs are made: rows of x, and the mean
   of their neighbours in y.
docs/explanation/architecture.md says what it achieves.

The orthogonal map between two pools, refined by the neighbours that it finds.

One round: map rows of x, find for each row its nearest rows of y by CSLS and for each row of y its
nearest of x, and fit the next map to the rows and the means of their neighbours. A mean of
neighbours stands for the partner that a row of a disjoint pool does not have.
Sources: Dar 2025 (mini-vec2vec), section 3.2, whose rounds average neighbours by cosine and mix the
maps; Conneau, Lample et al. 2018 (CSLS, which converges in half the rounds here).

What an alignment is worth, without a known pair.

Two maps, whose starts are from halves that share no item, translate the same random rows of x.
Two measures:

found_again  the share of rows whose translation by one map is nearest to its own translation by the
             other, among all of them. Maps that are wrong, or right in a part of the space only,
             lose rows: they are wrong in different ways.
agreement    the share of rows for which both maps choose the same nearest row of y. It falls with
             the noise of the maps, which costs right ones a few rows too.

right = found_again agreement^(1/8). It is compared with the truth in tests/maths/bootstrap.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap.annealing import principal_directions
from app.maths.bootstrap.components import DRAWS, first_overlap
from app.maths.bootstrap.neighbours import (
    Beat,
    csls_factors,
    nearest_rows,
    no_beat,
    product_blocks,
    random_rows,
)
from app.maths.bootstrap.pools import OnStep, Progress, ignore_step

#: Numbers that are averaged at a time.
NUMBERS_PER_MEAN = 2**22


def orthogonal(overlap: Float32[Tensor, "dx dy"]) -> Float32[Tensor, "dx dy"]:
    """The (semi-)orthogonal map W that maximises tr(W^T M) for an overlap M: Procrustes."""
    left, _, right = torch.linalg.svd(overlap.double(), full_matrices=False)
    rotation: Tensor = (left @ right).float()
    return rotation


def refine(
    x: Float32[Tensor, "n dx"],
    y: Float32[Tensor, "m dy"],
    rotation: Float32[Tensor, "dx dy"],
    stage: tuple[int, int, int],
    *,
    seed: int,
    beat: Beat = no_beat,
) -> Float32[Tensor, "dx dy"]:
    """The map after a stage on random rows of both pools, which are unit rows.

    stage  rounds, random rows of each pool that take part in a round, and neighbours of a row that
           are averaged
    """
    rounds, most, count = stage
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        some_x, some_y = (random_rows(side, most, generator) for side in (x, y))
        mapped = normalize(some_x @ rotation)
        of_x, of_y = neighbours(mapped, some_y, count, beat=beat)
        overlap = some_x.T @ normalize(mean_rows(some_y, of_x))
        overlap += normalize(mean_rows(some_x, of_y)).T @ some_y
        rotation = orthogonal(overlap)
    return rotation


def neighbours(
    q: Float32[Tensor, "n d"], y: Float32[Tensor, "m d"], k: int, *, beat: Beat = no_beat
) -> tuple[Int64[Tensor, "n k"], Int64[Tensor, "m k"]]:
    """For each row of q its k nearest of y by CSLS, and for each of y its k nearest of q."""
    k = min(k, len(q), len(y))
    left, right = csls_factors(q, y, beat=beat)
    _, of_q = nearest_rows(left, right, k, beat=beat)
    _, of_y = nearest_rows(right, left, k, beat=beat)
    return of_q, of_y


def mean_rows(rows: Float32[Tensor, "m d"], chosen: Int64[Tensor, "n k"]) -> Float32[Tensor, "n d"]:
    """(n, d) the mean of the chosen rows."""
    step = max(1, NUMBERS_PER_MEAN // (chosen.shape[1] * rows.shape[1]))
    return torch.cat([rows[piece].mean(dim=1) for piece in torch.split(chosen, step)])


#: Rows of each pool that two maps are compared on. The estimate is for an index of that size.
ESTIMATE_ROWS = 2_000
#: The power of the agreement: so small that the estimate is below the measured top-1.
AGREEMENT_POWER = 0.125


@dataclass(frozen=True)
class AlignmentEstimate:
    """An estimate from two maps whose starts share no item.

    right        share of items whose translation is nearest to the right item among `index`
    found_again  above
    agreement    above
    index        items that are searched
    """

    right: float
    found_again: float
    agreement: float
    index: int


def compare_maps(
    x: Float32[Tensor, "n dx"],
    y: Float32[Tensor, "m dy"],
    maps: tuple[Float32[Tensor, "dx dy"], Float32[Tensor, "dx dy"]],
    *,
    seed: int,
    beat: Beat = no_beat,
) -> AlignmentEstimate:
    """Compare two maps on random rows; rows of both pools are unit rows."""
    generator = torch.Generator().manual_seed(seed)
    index = min(ESTIMATE_ROWS, len(x), len(y))
    some_x, some_y = (random_rows(side, index, generator) for side in (x, y))
    first, second = (normalize(some_x @ each) for each in maps)
    rows = torch.arange(index, device=x.device)
    chosen = torch.cat(
        [block.argmax(dim=1) for _, block in product_blocks(first, some_y, beat=beat)]
    )
    behind = _ranks(second, some_y, chosen, beat=beat)
    own = _ranks(second, first, rows, beat=beat, ties=True)
    agreement = float((behind == 0).double().mean())
    # A row that another equals is not found.
    found = float((own == 1).double().mean())
    return AlignmentEstimate(
        right=found * agreement**AGREEMENT_POWER,
        found_again=found,
        agreement=agreement,
        index=index,
    )


def _ranks(
    q: Float32[Tensor, "n d"],
    y: Float32[Tensor, "m d"],
    chosen: Int64[Tensor, " n"],
    *,
    beat: Beat,
    ties: bool = False,
) -> Int64[Tensor, " n"]:
    """(n,) the number of rows of y that are nearer to each q than the chosen one; with `ties`, of
    those that are at least as near, which it is itself.
    """
    ranks = torch.empty_like(chosen)
    for piece, block in product_blocks(q, y, beat=beat):
        own = block.gather(1, chosen[piece, None])
        ranks[piece] = ((block >= own) if ties else (block > own)).sum(dim=1)
    return ranks


#: Estimated share of right items that ends the search.
ENOUGH_RIGHT = 0.5
#: Steps of an attempt: the draws of components and two stages. And after the attempts.
ATTEMPT_STEPS, LAST_STEPS = DRAWS + 2, 2
#: Fewest rows of a pool.
FEWEST_ALIGNED_ROWS = 1_000
#: The stages of an attempt, on halves and on the whole pools, and of the final refinement.
HALF_STAGE, WHOLE_STAGE, FINAL_STAGE = (16, 4_000, 20), (12, 6_000, 10), (6, 16_000, 10)
#: Leading directions that wider pools are reduced to.
MAX_ALIGNED_DIMENSIONS = 512
#: Neighbours of a made pair that are averaged.
MADE_NEIGHBOURS = 10


@dataclass(frozen=True)
class AlignmentSettings:
    """The settings of an alignment: most attempts, of both halves together, and made pairs."""

    attempts: int = 4
    size: int = 4_096
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Alignment:
    """The result of an alignment.

    rotation    an orthogonal map of centred unit rows; of pools above MAX_ALIGNED_DIMENSIONS, of
                their unit rows along the leading directions
    rows        (p,) rows of x, ascending, which pairs join with a place in the space of y
    directions  (p, d_y) unit rows, those places: each that of the mean of nearest rows of y
    """

    rotation: Float32[Tensor, "rx ry"]
    estimate: AlignmentEstimate
    rows: Int64[Tensor, " p"]
    directions: Float32[Tensor, "p dy"]
    attempts: int


@torch.no_grad()
def align_pools(
    x: Float32[Tensor, "n dx"],
    y: Float32[Tensor, "m dy"],
    *,
    settings: AlignmentSettings,
    on_step: OnStep = ignore_step,
) -> Alignment:
    """Align two pools of centred unit rows (`fit_pools`), at least FEWEST_ALIGNED_ROWS each.

    on_step  called several times a second; the steps have no checkpoints
    Deterministic for equal inputs, settings, device and number of threads.
    """
    progress = Progress(on_step, settings.attempts * ATTEMPT_STEPS + LAST_STEPS)
    beat, whole = progress.beat, y
    x, y = (_narrow(side, beat) for side in (x, y))
    maps: list[Float32[Tensor, "dx dy"]] = []
    found: list[tuple[AlignmentEstimate, Tensor]] = []
    for attempt in range(settings.attempts):
        rotation = _attempt(x, y, attempt, settings.seed, progress)
        # Those of the other halves.
        for other in maps[(attempt + 1) % 2 :: 2]:
            estimate = compare_maps(x, y, (other, rotation), seed=settings.seed, beat=beat)
            found.append((estimate, other + rotation))
        maps.append(rotation)
        best, mean = max(found, key=lambda each: each[0].right, default=(None, rotation))
        if best is not None:
            progress.facts = {"right": best.right}
            if best.right >= ENOUGH_RIGHT:
                break
    assert best is not None
    progress.done = progress.total - LAST_STEPS
    rotation = refine(x, y, orthogonal(mean), FINAL_STAGE, seed=0, beat=beat)
    progress.step()
    pairs = _make_pairs(x, y, whole, rotation, settings, beat)
    progress.step()
    return Alignment(rotation, best, *pairs, len(maps))


def _attempt(
    x: Float32[Tensor, "n dx"],
    y: Float32[Tensor, "m dy"],
    attempt: int,
    seed: int,
    progress: Progress,
) -> Float32[Tensor, "dx dy"]:
    """The map that one attempt finds between halves of both pools."""
    first, second = (_half(side, attempt % 2, seed=seed + of) for of, side in enumerate((x, y)))
    overlap = first_overlap(
        first, second, seed=seed + attempt, on_draw=progress.step, beat=progress.beat
    )
    rotation = refine(
        first, second, orthogonal(overlap), HALF_STAGE, seed=attempt, beat=progress.beat
    )
    progress.step()
    rotation = refine(x, y, rotation, WHOLE_STAGE, seed=100 + attempt, beat=progress.beat)
    progress.step()
    return rotation


def _make_pairs(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    whole: Float32[Tensor, "m dy"],
    rotation: Float32[Tensor, "rx ry"],
    settings: AlignmentSettings,
    beat: Beat,
) -> tuple[Int64[Tensor, " p"], Float32[Tensor, "p dy"]]:
    """Random rows of x, and the places that pairs join them with.

    whole  y in all its dimensions
    """
    generator = torch.Generator().manual_seed(settings.seed)
    order = torch.randperm(len(x), generator=generator)[: settings.size]
    rows = order.sort().values.to(x.device)
    mapped = normalize(x[rows] @ rotation)
    nearest, _ = neighbours(mapped, y, MADE_NEIGHBOURS, beat=beat)
    return rows, normalize(mean_rows(whole, nearest))


def _half(side: Float32[Tensor, "n d"], which: int, *, seed: int) -> Float32[Tensor, "h d"]:
    """Half of the rows: no row is in both halves."""
    order = torch.randperm(len(side), generator=torch.Generator().manual_seed(seed))
    return side[order[which::2].to(side.device)]


def _narrow(side: Float32[Tensor, "n d"], beat: Beat) -> Float32[Tensor, "n r"]:
    """Unit rows along at most MAX_ALIGNED_DIMENSIONS leading directions."""
    if side.shape[1] <= MAX_ALIGNED_DIMENSIONS:
        return side
    return normalize(principal_directions(side, most=MAX_ALIGNED_DIMENSIONS, beat=beat).along)
