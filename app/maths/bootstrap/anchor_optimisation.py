"""Anchor optimisation: target anchors move on the sphere until the relative vectors of both pools
look alike.

The loop of Algorithm 1 of Cannistraci et al. 2023. The caller chooses the target R of each item's
relative vector in the target pool: the hard correspondence of paper.py, or the mean under a soft
plan of soft_plan.py. For unit rows y (m, d) and anchors A (size, d), R_Y = y A^T; the loss is the
mean of (R_Y - R)^2, its gradient with respect to A is 2 / (m size) (R_Y - R)^T y. Adam takes a
step, and every anchor is scaled back to length 1. At the end each anchor is rounded to its nearest
item.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim.adam import adam

from app.maths.bootstrap.neighbours import Beat, no_beat, product, product_blocks
from app.maths.bootstrap.pools import GrownPairs, OnStep, Pools, State, Step, check_seeds

#: Rows of relative vectors that are compared at a time.
LOSS_ROWS = 8192


@dataclass(frozen=True)
class DescentSettings:
    """The settings of an optimisation.

    size           the number of parallel anchors to reach, seeds included
    steps          of Adam, with its learning rate
    freeze_seeds   whether the seeds' target anchors stay fixed
    seed           draws the source anchors and the start of the unknown target anchors
    """

    size: int
    steps: int
    learning_rate: float
    freeze_seeds: bool
    seed: int


@dataclass(frozen=True, eq=False)
class RelativePools:
    """The input of a correspondence.

    x, y          (n, size) and (m, size) relative vectors of the pools to the current anchors
    step          the number of the current step, from 0
    carried       data that the correspondence of the step before left for this one; None in the
                  first
    memory, beat  for tables that grow with n and m together
    """

    x: Float32[Tensor, "n size"]
    y: Float32[Tensor, "m size"]
    step: int
    carried: Float64[Tensor, " r"] | None
    memory: int
    beat: Beat


@dataclass(frozen=True, eq=False)
class TargetRelatives:
    """The output of a correspondence.

    rows      (p,) of the target pool
    relative  (p, size) the relative vectors that they should have
    partner   (q,) the row of the other pool that is most like each matched row; only used to report
              changes
    carried   data for the next step's correspondence, where it starts from this one's
    """

    rows: Int64[Tensor, " p"]
    relative: Float32[Tensor, "p size"]
    partner: Int64[Tensor, " q"]
    carried: Float64[Tensor, " r"] | None = None


Correspondence = Callable[[RelativePools], TargetRelatives]


@dataclass(eq=False)
class AnchorState:
    """The state of the optimisation.

    frozen   (f, d) fixed unit target anchors, the first of all
    free     (size - f, d) unit target anchors that move
    first_moment, second_moment   (size - f, d) Adam's, of the gradients to `free`
    done     steps
    partner, carried, facts  of the last step
    """

    frozen: Float32[Tensor, "f d"]
    free: Float32[Tensor, "g d"]
    first_moment: Float32[Tensor, "g d"]
    second_moment: Float32[Tensor, "g d"]
    done: int = 0
    partner: Int64[Tensor, " q"] | None = None
    carried: Float64[Tensor, " r"] | None = None
    facts: dict[str, float] = field(default_factory=dict)

    def snapshot(self) -> State:
        """A copy on the CPU that later steps do not change."""
        assert self.partner is not None
        tensors = {
            "free": self.free,
            "first_moment": self.first_moment,
            "second_moment": self.second_moment,
            "step": torch.tensor(self.done),
            "partner": self.partner,
            "loss": torch.tensor(self.facts["loss"], dtype=torch.float64),
            "agreement": torch.tensor(self.facts.get("agreement", torch.nan), dtype=torch.float64),
        }
        if self.carried is not None:
            tensors["carried"] = self.carried
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

    def restore(self, state: State) -> None:
        """Restore the state of a snapshot."""
        device = self.free.device
        for name in ("free", "first_moment", "second_moment"):
            getattr(self, name).copy_(state[name])
        self.done = int(state["step"])
        self.partner = state["partner"].to(device)
        self.carried = state["carried"].to(device) if "carried" in state else None
        self.facts = {
            name: float(state[name]) for name in ("loss", "agreement") if not state[name].isnan()
        }


@torch.no_grad()
def optimise(
    pools: Pools,
    seeds: list[tuple[int, int]],
    descent: DescentSettings,
    correspond: Correspondence,
    *,
    state: State | None,
    on_step: OnStep,
) -> GrownPairs:
    """Grow seed pairs into `descent.size` parallel anchors; fewer where two of them are nearest to
    one item.

    Kept seeds come first, then the anchors nearest to their items. The confidence is nan, because
    optimisation estimates none.
    facts  of the last step: loss, agreement; and nearness, the mean cosine of the other anchors to
           their items

    state  a checkpoint of an earlier run with equal arguments; the result has the same bits as an
           uninterrupted run
    Deterministic for equal inputs, seed, device and number of threads. Raises InvalidSeeds.
    """
    check_seeds(seeds, source=len(pools.x), target=len(pools.y), size=descent.size)
    rows, anchors = _start(pools, seeds, descent)
    if state is not None:
        anchors.restore(state)

    def beat() -> None:
        on_step(Step(anchors.done, descent.steps, anchors.facts))

    relative_x = product(pools.x, pools.x[rows].T, beat=beat)

    while anchors.done < descent.steps and len(anchors.free):
        _step(pools, relative_x, anchors, correspond, descent.learning_rate, beat)
        on_step(Step(anchors.done, descent.steps, anchors.facts, anchors.snapshot()))
    return _round_to_items(pools, rows, seeds, anchors, beat)


def _start(
    pools: Pools, seeds: list[tuple[int, int]], descent: DescentSettings
) -> tuple[list[int], AnchorState]:
    """Rows of the source anchors, seeds first and the others drawn; and the target anchors: the
    seeds', then random ones.
    """
    generator = torch.Generator().manual_seed(descent.seed)
    seed_rows = {i for i, _ in seeds}
    others = [
        i for i in torch.randperm(len(pools.x), generator=generator).tolist() if i not in seed_rows
    ]
    rows = ([i for i, _ in seeds] + others)[: descent.size]
    # Drawn on the CPU, so that equal seeds give equal starts on every device.
    random_anchors = normalize(
        torch.randn(descent.size - len(seeds), pools.y.shape[1], generator=generator)
    ).to(pools.device)
    known = pools.y[[j for _, j in seeds]]
    frozen, free = (
        (known, random_anchors)
        if descent.freeze_seeds
        else (known[:0], torch.cat([known, random_anchors]))
    )
    return rows, AnchorState(frozen, free, torch.zeros_like(free), torch.zeros_like(free))


def _step(
    pools: Pools,
    relative_x: Float32[Tensor, "n size"],
    anchors: AnchorState,
    correspond: Correspondence,
    rate: float,
    beat: Beat,
) -> None:
    """One step of Algorithm 1: lines 4 to 8."""
    relative_y = product(pools.y, torch.cat([anchors.frozen, anchors.free]).T, beat=beat)
    targets = correspond(
        RelativePools(relative_x, relative_y, anchors.done, anchors.carried, pools.memory, beat)
    )
    loss, gradient = mean_squares(pools.y, relative_y, targets, beat=beat)
    _descend(anchors, gradient[len(anchors.frozen) :], rate)
    facts = {"loss": loss}
    if anchors.partner is not None:
        facts["agreement"] = float((targets.partner == anchors.partner).double().mean())
    anchors.done, anchors.facts = anchors.done + 1, facts
    anchors.partner, anchors.carried = targets.partner, targets.carried


def _descend(anchors: AnchorState, gradient: Float32[Tensor, "g d"], rate: float) -> None:
    """A step of Adam, with the usual constants, and back onto the sphere: the constraint |a| = 1 of
    equation 1.
    """
    # The function instead of its class, whose import takes a second and 800 modules.
    adam(
        [anchors.free],
        [gradient],
        [anchors.first_moment],
        [anchors.second_moment],
        [],
        [torch.tensor(float(anchors.done))],
        amsgrad=False,
        beta1=0.9,
        beta2=0.999,
        lr=rate,
        weight_decay=0.0,
        eps=1e-8,
        maximize=False,
    )
    anchors.free.copy_(normalize(anchors.free))


def mean_squares(
    y: Float32[Tensor, "m d"],
    relative_y: Float32[Tensor, "m size"],
    targets: TargetRelatives,
    *,
    beat: Beat = no_beat,
) -> tuple[float, Float32[Tensor, "size d"]]:
    """The mean of (relative_y - target)^2 over rows and anchors, and its gradient to the anchors
    (size, d).
    """
    total, gradient = 0.0, y.new_zeros(relative_y.shape[1], y.shape[1])
    for rows, relative in zip(
        torch.split(targets.rows, LOSS_ROWS), torch.split(targets.relative, LOSS_ROWS), strict=True
    ):
        beat()
        difference = relative_y[rows] - relative
        total += float(difference.square().sum(dtype=torch.float64))
        gradient.addmm_(difference.T, y[rows])
    return total / targets.relative.numel(), gradient.mul_(2 / targets.relative.numel())


def _round_to_items(
    pools: Pools, rows: list[int], seeds: list[tuple[int, int]], anchors: AnchorState, beat: Beat
) -> GrownPairs:
    """Each free anchor as its nearest item. The nearest anchor gets a contested item; items of
    frozen seeds are taken.
    """
    frozen = len(anchors.frozen)
    cosines, nearest = (
        torch.empty(len(anchors.free)),
        torch.empty(len(anchors.free), dtype=torch.int64),
    )
    for piece, block in product_blocks(anchors.free, pools.y, memory=pools.memory, beat=beat):
        largest = block.max(dim=1)
        cosines[piece], nearest[piece] = (
            largest.values.clamp(-1.0, 1.0).cpu(),
            largest.indices.cpu(),
        )
    pairs, nearness = seeds[:frozen], list[float]()
    used_items = {j for _, j in pairs}
    for index in cosines.argsort(descending=True, stable=True).tolist():
        j = int(nearest[index])
        if j not in used_items:
            used_items.add(j)
            pairs.append((rows[frozen + index], j))
            nearness.append(float(cosines[index]))
    facts = dict(anchors.facts)
    if nearness:
        facts["nearness"] = sum(nearness) / len(nearness)
    seed_set = set(seeds)
    return GrownPairs(
        torch.tensor(sorted(pairs, key=lambda pair: pair not in seed_set)),
        torch.full((len(pairs),), torch.nan),
        facts,
    )
