"""Anchors from a few seed pairs: the paper's anchor optimisation (Cannistraci et al. 2023, section
2 and Algorithm 1).

Target anchors move on the sphere until the relative vectors of both pools look alike. A hard
correspondence, from the entropic plan between them, gives the target R of each item's relative
vector in the target pool. For unit rows y (m, d) and anchors A (size, d), R_Y = y A^T; the loss is
the mean of (R_Y - R)^2, its gradient with respect to A is 2 / (m size) (R_Y - R)^T y. Adam takes a
step, and every anchor is scaled back to length 1. At the end each anchor is rounded to its nearest
item.

docs/explanation/decisions.md lists what the paper leaves open, and our choices. The method fails
silently when there are too few seeds: do not use its anchors without checking them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim.adam import adam

from app.maths.bootstrap import annealing
from app.maths.bootstrap.estimate import BootstrapEstimate, Outcome, vote, wrong_seeds
from app.maths.bootstrap.neighbours import no_beat, product, product_blocks
from app.maths.bootstrap.pools import Pools, seed_tensor
from app.maths.bootstrap.self_learning import LIKELY_RIGHT
from research.grown_pairs import GrownPairs, check_seeds
from research.sinkhorn import column_argmax, source_potential

#: Rows of relative vectors that are compared at a time.
LOSS_ROWS = 8192


@dataclass(frozen=True)
class PaperSettings:
    """The settings of the paper's method.

    size    the number of parallel anchors to reach, seeds included
    steps   optimisation steps (the paper: 250 for retrieval, 125 for stitching), and Adam's
            learning rate (.02, .05)
    epsilon, sinkhorn_steps   of the correspondence (1e-4 and 1)
    seed    draws the source anchors and the start of the unknown target anchors
    """

    size: int
    steps: int = 250
    learning_rate: float = 0.02
    epsilon: float = 1e-4
    sinkhorn_steps: int = 1
    seed: int = 0


@dataclass(eq=False)
class AnchorState:
    """The state of the optimisation.

    frozen   (f, d) the unit target anchors of the seeds, the first of all, which stay as they are
    free     (size - f, d) unit target anchors that move
    first_moment, second_moment   (size - f, d) Adam's, of the gradients to `free`
    done     steps
    partner  (m,) the row of x that each y was compared with in the last step, and its `facts`
    """

    frozen: Float32[Tensor, "f d"]
    free: Float32[Tensor, "g d"]
    first_moment: Float32[Tensor, "g d"]
    second_moment: Float32[Tensor, "g d"]
    done: int = 0
    partner: Int64[Tensor, " m"] | None = None
    facts: dict[str, float] = field(default_factory=dict)


@torch.no_grad()
def grow(
    pools: Pools,
    seeds: list[tuple[int, int]],
    settings: PaperSettings,
) -> GrownPairs:
    """Algorithm 1: grow seed pairs into `settings.size` parallel anchors; fewer where two of them
    are nearest to one item.

    Seeds come first, then the anchors nearest to their items. The confidence is nan, because
    optimisation estimates none.
    facts  of the last step: loss, agreement; and nearness, the mean cosine of the other anchors to
           their items

    Deterministic for equal inputs, seed, device and number of threads. Raises InvalidSeeds.
    """
    check_seeds(seeds, source=len(pools.x), target=len(pools.y), size=settings.size)
    rows, anchors = _start(pools, seeds, settings)
    relative_x = product(pools.x, pools.x[rows].T, beat=no_beat)
    while anchors.done < settings.steps and len(anchors.free):
        _step(pools, relative_x, anchors, settings)
    return _round_to_items(pools, rows, seeds, anchors)


def _start(
    pools: Pools, seeds: list[tuple[int, int]], settings: PaperSettings
) -> tuple[list[int], AnchorState]:
    """Rows of the source anchors, seeds first and the others drawn; and the target anchors: the
    seeds', then random ones.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    seed_rows = {i for i, _ in seeds}
    others = [
        i for i in torch.randperm(len(pools.x), generator=generator).tolist() if i not in seed_rows
    ]
    rows = ([i for i, _ in seeds] + others)[: settings.size]
    # Drawn on the CPU, so that equal seeds give equal starts on every device.
    random_anchors = normalize(
        torch.randn(settings.size - len(seeds), pools.y.shape[1], generator=generator)
    ).to(pools.x.device)
    known = pools.y[[j for _, j in seeds]]
    moments = torch.zeros_like(random_anchors), torch.zeros_like(random_anchors)
    return rows, AnchorState(known, random_anchors, *moments)


def _step(
    pools: Pools,
    relative_x: Float32[Tensor, "n size"],
    anchors: AnchorState,
    settings: PaperSettings,
) -> None:
    """One step of Algorithm 1, lines 4 to 8: every y should get the relative vector of the x with
    the most mass in its column of the plan.
    """
    relative_y = product(pools.y, torch.cat([anchors.frozen, anchors.free]).T, beat=no_beat)
    epsilon, steps = settings.epsilon, settings.sinkhorn_steps
    u = source_potential(relative_x, relative_y, epsilon=epsilon, steps=steps)
    partner = column_argmax(relative_x, relative_y, u, epsilon=epsilon)
    loss, gradient = mean_squares(pools.y, relative_y, relative_x, partner)
    _descend(anchors, gradient[len(anchors.frozen) :], settings.learning_rate)
    facts = {"loss": loss}
    if anchors.partner is not None:
        facts["agreement"] = float((partner == anchors.partner).double().mean())
    anchors.done, anchors.facts, anchors.partner = anchors.done + 1, facts, partner


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
    relative_x: Float32[Tensor, "n size"],
    partner: Int64[Tensor, " m"],
) -> tuple[float, Float32[Tensor, "size d"]]:
    """The mean of (relative_y - relative_x[partner])^2 over rows and anchors, and its gradient to
    the anchors (size, d).
    """
    total, gradient = 0.0, y.new_zeros(relative_y.shape[1], y.shape[1])
    for start in range(0, len(y), LOSS_ROWS):
        rows = slice(start, start + LOSS_ROWS)
        difference = relative_y[rows] - relative_x[partner[rows]]
        total += float(difference.square().sum(dtype=torch.float64))
        gradient.addmm_(difference.T, y[rows])
    return total / relative_y.numel(), gradient.mul_(2 / relative_y.numel())


def _round_to_items(
    pools: Pools, rows: list[int], seeds: list[tuple[int, int]], anchors: AnchorState
) -> GrownPairs:
    """The seeds, and each free anchor as its nearest item, which the nearest anchor gets."""
    frozen = len(anchors.frozen)
    cosines, nearest = (
        torch.empty(len(anchors.free)),
        torch.empty(len(anchors.free), dtype=torch.int64),
    )
    for piece, block in product_blocks(anchors.free, pools.y, beat=no_beat):
        largest = block.max(dim=1)
        cosines[piece], nearest[piece] = (
            largest.values.clamp(-1.0, 1.0).cpu(),
            largest.indices.cpu(),
        )
    pairs, nearness = list(seeds), list[float]()
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
    return GrownPairs(torch.tensor(pairs), torch.full((len(pairs),), torch.nan), facts)


@torch.no_grad()
def judge_pairs(
    pools: Pools,
    seeds: list[tuple[int, int]],
    grown: GrownPairs,
    *,
    seed: int,
) -> Outcome:
    """The verdict of held-out maps on pairs that came without an estimate.

    The confidence of a pair is the share of held-out maps that choose it, and the estimate is the
    mean of that: too low where the spaces are weak, and never high for unrelated pairs.
    """
    x, y = (
        annealing.principal_directions(pools.x),
        annealing.principal_directions(pools.y),
    )
    pairs, seed_rows = (rows.to(pools.x.device) for rows in (grown.pairs, seed_tensor(seeds)))
    votes = vote(x.along, y.along, pairs, seed_rows, seed=seed, beat=no_beat)
    right = votes.right(votes.confirmed)
    estimate = BootstrapEstimate(
        right,
        agreement=math.nan,
        confirmed=votes.share,
        by_chance=math.nan,
        seeds_confirmed=votes.seeds_confirmed,
        orphans_paired=math.nan,
    )
    # A result that is mostly wrong cannot identify wrong seeds.
    wrong_rows = (
        wrong_seeds(votes, seed_rows.cpu(), x.along, y.along) if right > LIKELY_RIGHT else []
    )
    return Outcome(grown.pairs, votes.confirmed, estimate, wrong_rows, grown.facts)
