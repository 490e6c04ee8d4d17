"""A map between two pools that have nothing known in common, and pairs that are made with it.

1. Both pools are divided into two halves at random. An attempt aligns a half of x with a half of y:
   independent components of both, matched by how they relate (components.py), give a
   first map; neighbours refine it.
2. Attempts alternate between the halves until one of each half agrees with one of the other
   (`compare_maps`). The halves share no item: there are many wrong maps and they differ,
   but only one right one.
3. The mean of both maps is refined on the whole pools, and pairs are made: rows of x, and the mean
   of their neighbours in y.
docs/explanation/decisions.md says what it achieves.

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

right = found_again agreement^(1/8). It is compared with the truth in tests/maths/alignment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.alignment.components import independent_components, match_components
from app.maths.bootstrap.annealing import principal_directions
from app.maths.bootstrap.neighbours import (
    CSLS_NEIGHBOURS,
    Beat,
    nearest_rows,
    no_beat,
    product_blocks,
)
from app.maths.bootstrap.pools import OnStep, Step, ignore_step

#: Numbers that are averaged at a time.
NUMBERS_PER_MEAN = 2**22


@dataclass(frozen=True)
class Rounds:
    """A stage of the refinement.

    count       rounds
    rows        random rows of each pool that take part in a round
    neighbours  of a row that are averaged
    """

    count: int
    rows: int
    neighbours: int


def orthogonal(overlap: Float32[Tensor, "dx dy"]) -> Float32[Tensor, "dx dy"]:
    """The (semi-)orthogonal map W that maximises tr(W^T M) for an overlap M: Procrustes."""
    left, _, right = torch.linalg.svd(overlap.double(), full_matrices=False)
    rotation: Tensor = (left @ right).float()
    return rotation


def refine(
    x: Float32[Tensor, "n dx"],
    y: Float32[Tensor, "m dy"],
    rotation: Float32[Tensor, "dx dy"],
    rounds: Rounds,
    *,
    seed: int,
    beat: Beat = no_beat,
) -> Float32[Tensor, "dx dy"]:
    """The map after some rounds on random rows of both pools, which are unit rows."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds.count):
        some_x, some_y = (
            side[torch.randperm(len(side), generator=generator)[: rounds.rows].to(side.device)]
            for side in (x, y)
        )
        mapped = normalize(some_x @ rotation)
        of_x, of_y = neighbours(mapped, some_y, rounds.neighbours, beat=beat)
        overlap = some_x.T @ normalize(mean_rows(some_y, of_x))
        overlap += normalize(mean_rows(some_x, of_y)).T @ some_y
        rotation = orthogonal(overlap)
    return rotation


def neighbours(
    q: Float32[Tensor, "n d"], y: Float32[Tensor, "m d"], k: int, *, beat: Beat = no_beat
) -> tuple[Int64[Tensor, "n k"], Int64[Tensor, "m k"]]:
    """For each row of q its k nearest of y by CSLS, and for each of y its k nearest of q."""
    k, few = min(k, len(q), len(y)), min(CSLS_NEIGHBOURS, len(q), len(y))
    from_q, _ = nearest_rows(q, y, few, beat=beat)
    from_y, _ = nearest_rows(y, q, few, beat=beat)
    hub_q, hub_y = from_q.mean(dim=1, keepdim=True), from_y.mean(dim=1, keepdim=True)
    # A row's own offset does not change the order of its neighbours.
    one_q, one_y = torch.ones_like(hub_q), torch.ones_like(hub_y)
    twice_q, twice_y = torch.cat([2 * q, one_q], dim=1), torch.cat([2 * y, one_y], dim=1)
    less_q, less_y = torch.cat([q, -hub_q], dim=1), torch.cat([y, -hub_y], dim=1)
    _, of_q = nearest_rows(twice_q, less_y, k, beat=beat)
    _, of_y = nearest_rows(twice_y, less_q, k, beat=beat)
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

    right            share of items whose translation is nearest to the right item among `index`
    mean_rank_share  mean rank, less 1, that one map gives to the other's nearest item, over `index`
    found_again      above
    agreement        above
    index            items that are searched
    """

    right: float
    mean_rank_share: float
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
    some_x, some_y = (
        side[torch.randperm(len(side), generator=generator)[:index].to(side.device)]
        for side in (x, y)
    )
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
        mean_rank_share=float(behind.double().mean()) / index,
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
#: Steps of an attempt without its draws, and after the attempts.
STAGES, LAST_STEPS = 2, 2
#: Fewest rows of a pool.
FEWEST_ALIGNED_ROWS = 1_000
#: Rows that the components of one draw are computed from, and fewest rows of a component.
COMPONENT_ROWS, ROWS_PER_COMPONENT = 15_000, 30
#: Starts of one quadratic assignment.
MATCHING_STARTS = 20
#: The stages of an attempt, on halves and on the whole pools, and of the final refinement.
HALF_STAGE, WHOLE_STAGE = Rounds(16, 4_000, 20), Rounds(12, 6_000, 10)
FINAL_STAGE = Rounds(6, 16_000, 10)
#: Leading directions that wider pools are reduced to.
MAX_ALIGNED_DIMENSIONS = 512
#: Neighbours of a made pair that are averaged.
MADE_NEIGHBOURS = 10


@dataclass(frozen=True)
class AlignmentSettings:
    """The settings of an alignment.

    attempts    most attempts, of both halves together
    components  of each pool in a draw; fewer in small pools
    draws       of components in an attempt, from different rows; their matchings are added
    size        made pairs
    """

    attempts: int = 4
    components: int = 140
    draws: int = 3
    size: int = 4_096
    seed: int = 0


@dataclass(frozen=True, eq=False)
class MadePairs:
    """Pairs of a row of x and a place in the space of y, where no row of y needs to be.

    rows        (p,) rows of x, ascending
    directions  (p, d_y) unit rows: the direction of the mean of the nearest rows of y
    weights     (p,) cosine of the mapped row to that direction, at least 0
    """

    rows: Int64[Tensor, " p"]
    directions: Float32[Tensor, "p dy"]
    weights: Float32[Tensor, " p"]


@dataclass(frozen=True, eq=False)
class Alignment:
    """The result of an alignment.

    rotation  an orthogonal map of centred unit rows; of pools above MAX_ALIGNED_DIMENSIONS, of
              their unit rows along the leading directions
    """

    rotation: Float32[Tensor, "rx ry"]
    estimate: AlignmentEstimate
    made: MadePairs
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
    search = _Search(x, y, y, settings, on_step)
    search.x, search.y = (_narrow(side, search.beat) for side in (x, y))
    return search.run()


@dataclass(eq=False)
class _Search:
    """The attempts so far, and the two that agree best.

    whole     the target's rows in all dimensions
    done      steps
    agreeing  the two maps that `best` compares
    """

    x: Float32[Tensor, "n rx"]
    y: Float32[Tensor, "m ry"]
    whole: Float32[Tensor, "m dy"]
    settings: AlignmentSettings
    on_step: OnStep
    done: int = 0
    maps: list[Tensor] = field(default_factory=list)
    best: AlignmentEstimate | None = None
    agreeing: tuple[Tensor, Tensor] | None = None

    @property
    def total(self) -> int:
        """Steps: the draws and stages of the attempts, and the final stage and pairs."""
        return self.settings.attempts * (self.settings.draws + STAGES) + LAST_STEPS

    def beat(self) -> None:
        self.on_step(Step(self.done, self.total, self._facts()))

    def run(self) -> Alignment:
        settings = self.settings
        for attempt in range(settings.attempts):
            found = self._attempt(attempt)
            for other in self.maps[(attempt + 1) % 2 :: 2]:
                self._compare(other, found)
            self.maps.append(found)
            if self.best is not None and self.best.right >= ENOUGH_RIGHT:
                break
        assert self.best is not None
        assert self.agreeing is not None
        self.done = self.total - LAST_STEPS
        rotation = self._refine(
            self.x, self.y, orthogonal(self.agreeing[0] + self.agreeing[1]), FINAL_STAGE, seed=0
        )
        made = self._make_pairs(rotation)
        self._step()
        return Alignment(rotation, self.best, made, len(self.maps))

    def _attempt(self, attempt: int) -> Float32[Tensor, "dx dy"]:
        """The map that one attempt finds between halves of both pools."""
        first, second = (
            _half(side, attempt % 2, seed=self.settings.seed + of)
            for of, side in enumerate((self.x, self.y))
        )
        rotation = orthogonal(self._first_overlap(first, second, attempt))
        rotation = self._refine(first, second, rotation, HALF_STAGE, seed=attempt)
        return self._refine(self.x, self.y, rotation, WHOLE_STAGE, seed=100 + attempt)

    def _first_overlap(
        self, x: Float32[Tensor, "n dx"], y: Float32[Tensor, "m dy"], attempt: int
    ) -> Float32[Tensor, "dx dy"]:
        """Sum p_a w_ab p_b^T over matched components a of x and b of y, and over draws."""
        settings = self.settings
        overlap = x.new_zeros(x.shape[1], y.shape[1])
        generator = torch.Generator().manual_seed(settings.seed + 7 * attempt)
        for draw in range(settings.draws):
            drawn = [
                side[torch.randperm(len(side), generator=generator)[:COMPONENT_ROWS].to(x.device)]
                for side in (x, y)
            ]
            count = min(settings.components, *(len(rows) // ROWS_PER_COMPONENT for rows in drawn))
            of_x, of_y = (
                independent_components(
                    rows, count, seed=100 * attempt + 2 * draw + side, beat=self.beat
                )
                for side, rows in enumerate(drawn)
            )
            matched = match_components(
                of_x, of_y, starts=MATCHING_STARTS, seed=draw, beat=self.beat
            )
            weight = torch.from_numpy(matched.weight).to(x)[:, None]
            overlap += (of_x.prototypes[matched.a] * weight).T @ of_y.prototypes[matched.b]
            self._step()
        return overlap

    def _refine(
        self,
        x: Float32[Tensor, "n dx"],
        y: Float32[Tensor, "m dy"],
        rotation: Float32[Tensor, "dx dy"],
        rounds: Rounds,
        *,
        seed: int,
    ) -> Float32[Tensor, "dx dy"]:
        refined = refine(x, y, rotation, rounds, seed=seed, beat=self.beat)
        self._step()
        return refined

    def _compare(self, one: Tensor, other: Tensor) -> None:
        estimate = compare_maps(
            self.x, self.y, (one, other), seed=self.settings.seed, beat=self.beat
        )
        if self.best is None or estimate.right > self.best.right:
            self.best, self.agreeing = estimate, (one, other)

    def _make_pairs(self, rotation: Float32[Tensor, "rx ry"]) -> MadePairs:
        generator = torch.Generator().manual_seed(self.settings.seed)
        order = torch.randperm(len(self.x), generator=generator)[: self.settings.size]
        rows = order.sort().values.to(self.x.device)
        mapped = normalize(self.x[rows] @ rotation)
        nearest, _ = neighbours(mapped, self.y, MADE_NEIGHBOURS, beat=self.beat)
        weights = (normalize(mean_rows(self.y, nearest)) * mapped).sum(dim=1).clamp_min(0)
        return MadePairs(rows, normalize(mean_rows(self.whole, nearest)), weights)

    def _step(self) -> None:
        self.done += 1
        self.beat()

    def _facts(self) -> dict[str, float]:
        return {} if self.best is None else {"right": self.best.right}


def _half(side: Float32[Tensor, "n d"], which: int, *, seed: int) -> Float32[Tensor, "h d"]:
    """Half of the rows: no row is in both halves."""
    order = torch.randperm(len(side), generator=torch.Generator().manual_seed(seed))
    return side[order[which::2].to(side.device)]


def _narrow(side: Float32[Tensor, "n d"], beat: Beat) -> Float32[Tensor, "n r"]:
    """Unit rows along at most MAX_ALIGNED_DIMENSIONS leading directions."""
    if side.shape[1] <= MAX_ALIGNED_DIMENSIONS:
        return side
    return normalize(principal_directions(side, most=MAX_ALIGNED_DIMENSIONS, beat=beat).along)
