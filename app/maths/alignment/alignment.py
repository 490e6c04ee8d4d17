"""A map between two pools that have nothing known in common, and pairs that are made with it.

1. Both pools are divided into two halves at random. An attempt aligns a half of x with a half of y:
   independent components of both, matched by how they relate (components.py, matching.py), give a
   first map; neighbours refine it (rotation.py).
2. Attempts alternate between the halves until one of each half agrees with one of the other
   (alignment_estimate.py). The halves share no item: there are many wrong maps and they differ,
   but only one right one.
3. The mean of both maps is refined on the whole pools, and pairs are made: rows of x, and the mean
   of their neighbours in y.
docs/explanation/no-pairs.md explains it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.alignment.alignment_estimate import AlignmentEstimate, compare_maps
from app.maths.alignment.components import independent_components
from app.maths.alignment.matching import match_components
from app.maths.alignment.rotation import Rounds, mean_rows, neighbours, orthogonal, refine
from app.maths.bootstrap.annealing import principal_directions
from app.maths.bootstrap.neighbours import Beat
from app.maths.bootstrap.pools import OnStep, Step, ignore_step

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
MOST_ALIGNED_DIMENSIONS = 512
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

    rotation  an orthogonal map of centred unit rows; of pools above MOST_ALIGNED_DIMENSIONS, of
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
    memory: int,
    on_step: OnStep = ignore_step,
) -> Alignment:
    """Align two pools of centred unit rows (`fit_pools`), at least FEWEST_ALIGNED_ROWS each.

    memory   bytes for tables of cosines, in addition to copies of the pools
    on_step  called several times a second; the steps have no checkpoints
    Deterministic for equal inputs, settings, device and number of threads.
    """
    search = _Search(x, y, y, settings, memory, on_step)
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
    memory: int
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
        refined = refine(x, y, rotation, rounds, seed=seed, memory=self.memory, beat=self.beat)
        self._step()
        return refined

    def _compare(self, one: Tensor, other: Tensor) -> None:
        estimate = compare_maps(
            self.x,
            self.y,
            (one, other),
            seed=self.settings.seed,
            memory=self.memory,
            beat=self.beat,
        )
        if self.best is None or estimate.right > self.best.right:
            self.best, self.agreeing = estimate, (one, other)

    def _make_pairs(self, rotation: Float32[Tensor, "rx ry"]) -> MadePairs:
        generator = torch.Generator().manual_seed(self.settings.seed)
        order = torch.randperm(len(self.x), generator=generator)[: self.settings.size]
        rows = order.sort().values.to(self.x.device)
        mapped = normalize(self.x[rows] @ rotation)
        nearest, _ = neighbours(mapped, self.y, MADE_NEIGHBOURS, memory=self.memory, beat=self.beat)
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
    """Unit rows along at most MOST_ALIGNED_DIMENSIONS leading directions."""
    if side.shape[1] <= MOST_ALIGNED_DIMENSIONS:
        return side
    return normalize(principal_directions(side, most=MOST_ALIGNED_DIMENSIONS, beat=beat).along)
