"""Two pools of items, the progress of a search for their pairs, and the check of seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors, InvalidSeeds
from app.maths.bootstrap.neighbours import Beat, no_beat
from app.maths.geometry.space import check_vectors, directions_and_norms, row_norms
from app.types import repeated_positions

#: Numbers of a pool that are prepared between two beats.
NUMBERS_PER_PIECE = 2**22
#: Items longer than this many times the median length do not count in the mean.
OUTLIER_LENGTH = 100.0

#: A checkpoint of a method, from which it continues as if uninterrupted: tensors by name, on the
#: CPU or on the device of the pools. Most are never written, so none is copied before it is.
State = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Step:
    """Progress of a method.

    done, total  rounds or steps
    facts        numbers for a reader of the progress: loss, agreement
    state        a checkpoint, or None where the method cannot be interrupted: such a step only
                 shows that it is alive
    """

    done: int
    total: int
    facts: Mapping[str, float] = field(default_factory=dict)
    state: State | None = None


#: Known pairs: rows (i of x, j of y).
Seeds = Sequence[Sequence[int]]
#: Called at every step and several times a second in between; an exception ends the method.
OnStep = Callable[[Step], None]


def ignore_step(step: Step) -> None:
    """Do nothing."""


@dataclass(eq=False)
class Progress:
    """Counts the steps of a method, of at most `total`, and reports them with the facts so far."""

    on_step: OnStep
    total: int
    done: int = 0
    facts: dict[str, float] = field(default_factory=dict)

    def beat(self) -> None:
        """Show that the method is alive."""
        self.report(None)

    def step(self, **facts: float) -> None:
        """Count one more step."""
        self.done += 1
        self.facts |= facts
        self.report(None)

    def report(self, state: State | None) -> None:
        """Report the steps, with a checkpoint if there is one."""
        self.on_step(Step(self.done, self.total, dict(self.facts), state))

    def end(self) -> None:
        """Report all steps as done: a method may need fewer."""
        self.done = self.total
        self.report(None)


@dataclass(frozen=True, eq=False)
class Pools:
    """Two pools of items.

    x, y      (n, d_x) and (m, d_y) float32: items of the two pools, centred on their pool's mean,
              length 1
    """

    x: Float32[Tensor, "n dx"]
    y: Float32[Tensor, "m dy"]


def fit_pools(
    source: Float[Tensor, "n dx"], target: Float[Tensor, "m dy"], *, beat: Beat = no_beat
) -> Pools:
    """Pools of raw vectors, in the encoders' units. Raises as `fit_space`, whose unit rows these
    are.

    Outliers above OUTLIER_LENGTH are an exception: they do not count in the mean, because one could
    move it so far that all other items lay in one direction from it.
    """
    return Pools(_unit_about_mean(source, beat), _unit_about_mean(target, beat))


def _unit_about_mean(pool: Float[Tensor, "n d"], beat: Beat) -> Float32[Tensor, "n d"]:
    """Rows of a pool about its mean, of length 1, as in `fit_space`; in pieces, in float64."""
    beat()
    check_vectors(pool)
    n, pieces = len(pool), _split(pool)

    def in_float64(piece: Tensor) -> Tensor:
        beat()
        return piece.double()

    counted, weights, mean = _weighted_mean(pieces, beat)
    distances = torch.cat([row_norms(in_float64(piece) - mean) for piece in pieces])
    farthest = float(distances[counted].max())
    if float(mean.norm()) > n * torch.finfo(torch.float64).eps * farthest:
        # Where the mean is large compared with the spread, its rounding would add one common
        # direction of noise.
        rest = torch.stack(
            [
                weight @ (in_float64(piece) - mean)
                for weight, piece in zip(weights, pieces, strict=True)
            ]
        ).sum(dim=0)
    else:
        mean = rest = torch.zeros_like(mean)
    unit = torch.empty(pool.shape, dtype=torch.float32, device=pool.device)
    for start, piece in zip(range(0, n, len(pieces[0])), pieces, strict=True):
        unit[start : start + len(piece)] = directions_and_norms(
            in_float64(piece) - mean - rest, mean
        )[0]
    if not bool(unit.any()):
        raise DegenerateAnchors(
            f"The {n} items of a pool are all the same vector, up to float32 rounding. "
            "Use a pool with different items."
        )
    return unit


def mean_and_distance(
    pool: Float[Tensor, "n d"], *, beat: Beat = no_beat
) -> tuple[Float64[Tensor, " d"], float]:
    """The mean of a pool and the mean distance of its items from it, in the encoder's units, where
    the items count that count in `fit_pools`.
    """
    pieces = _split(pool)
    _, weights, mean = _weighted_mean(pieces, beat)
    distance = 0.0
    for weight, piece in zip(weights, pieces, strict=True):
        beat()
        distance += float(weight @ row_norms(piece.double() - mean))
    return mean, distance


def _weighted_mean(
    pieces: tuple[Tensor, ...], beat: Beat
) -> tuple[Bool[Tensor, " n"], tuple[Tensor, ...], Float64[Tensor, " d"]]:
    """Which items count (n,), the weights of each piece's items, and the mean (d,)."""
    counted = _counted(pieces, beat)
    weights = torch.split(counted.double() / counted.sum(), len(pieces[0]))
    sums = []
    for weight, piece in zip(weights, pieces, strict=True):
        beat()
        sums.append(weight @ piece.double())
    return counted, weights, torch.stack(sums).sum(dim=0)


def _split(pool: Float[Tensor, "n d"]) -> tuple[Tensor, ...]:
    return torch.split(pool, max(1, NUMBERS_PER_PIECE // pool.shape[1]))


def _counted(pieces: tuple[Tensor, ...], beat: Beat) -> Bool[Tensor, " n"]:
    """(n,) the items that count in the mean: all but outliers."""
    lengths = []
    for piece in pieces:
        beat()
        lengths.append(row_norms(piece.double()))
    every = torch.cat(lengths)
    median = every.median()
    if not bool(median > 0):
        return torch.ones_like(every, dtype=torch.bool)
    counted: Tensor = every <= OUTLIER_LENGTH * median
    return counted


def check_pairs(seeds: Seeds, *, source: int, target: int) -> None:
    """Raise InvalidSeeds unless all pairs are in range and no item is twice on a side."""
    outside = [row for row, (i, j) in enumerate(seeds) if not (0 <= i < source and 0 <= j < target)]
    if outside:
        raise InvalidSeeds(
            f"Seeds must be rows of the pools: below {source} in the source and below {target} "
            "in the target.",
            field="seeds",
            rows=outside,
        )
    for side, name in enumerate(("source", "target")):
        if rows := repeated_positions(pair[side] for pair in seeds):
            raise InvalidSeeds(
                f"An item of the {name}'s pool may be in one seed only. Remove the repeated seeds.",
                field="seeds",
                rows=rows,
            )


def seed_tensor(seeds: Seeds) -> Int64[Tensor, "s 2"]:
    """The rows (i, j) of the seeds as a tensor."""
    return torch.tensor(seeds, dtype=torch.int64).reshape(-1, 2)


def draw_rows(rows: int, most: int, always: Int64[Tensor, " s"], seed: int) -> Int64[Tensor, " r"]:
    """The rows in `always` and uniformly drawn others, `most` in total, in ascending order."""
    if rows <= most:
        return torch.arange(rows)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    others = order[~torch.isin(order, always)]
    return torch.cat([always, others[: max(0, most - len(always))]]).sort().values
