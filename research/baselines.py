"""Baselines: a rotation from the seeds alone, and self-learning as in vecmap.

Both translate with an orthogonal map and accept the pairs that choose each other by CSLS. They
estimate no confidence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap import neighbours as matching
from app.maths.bootstrap.neighbours import Beat, BestMatches
from app.maths.bootstrap.pools import (
    GrownPairs,
    OnStep,
    Pools,
    State,
    Step,
    check_seeds,
    ignore_step,
)
from app.maths.geometry.spectrum import rank_tolerance


@dataclass(frozen=True)
class Procrustes:
    """`neighbours` is how many neighbours the means of CSLS cover; at most the size of the smaller
    pool.
    """

    neighbours: int = 10


@dataclass(frozen=True)
class Vecmap:
    """neighbours  as for Procrustes
    keep        share of the similarities that the first rounds use, times `growth` at each stall
    patience    a stall is so many rounds that improve the mean cosine to the nearest translation by
                no more than `tolerance`
    most        rounds at most
    seed        draws the similarities that are used
    """

    neighbours: int = 10
    keep: float = 0.1
    growth: float = 2.0
    patience: int = 10
    tolerance: float = 1e-6
    most: int = 500
    seed: int = 0


def procrustes(
    pools: Pools,
    seeds: list[tuple[int, int]],
    settings: Procrustes,
    *,
    state: State | None = None,
    on_step: OnStep = ignore_step,
) -> GrownPairs:
    """The rotation of the seeds, then the pairs that choose each other by CSLS, the best scores
    first.

    One step, so `state` is never used. Deterministic; no estimate of confidence. Raises
    InvalidSeeds.
    """
    check_seeds(
        seeds, source=len(pools.x), target=len(pools.y), size=min(len(pools.x), len(pools.y))
    )
    pools = _narrow(pools)
    dictionary = torch.tensor(seeds, device=pools.device)
    translated = normalize(pools.x @ _rotation(pools, dictionary))

    def beat() -> None:
        on_step(Step(0, 1))

    k = min(settings.neighbours, len(pools.x), len(pools.y))
    grown = _mutual(pools, translated, seeds, k, {}, beat)
    on_step(Step(1, 1, grown.facts))
    return grown


def vecmap(
    pools: Pools,
    seeds: list[tuple[int, int]],
    settings: Vecmap,
    *,
    state: State | None = None,
    on_step: OnStep = ignore_step,
) -> GrownPairs:
    """Self-learning by orthogonal maps with a stochastic dictionary, from the seeds. The seeds
    themselves may be dropped.

    One round: the rotation of the dictionary; every item's best partner by CSLS, from both sides,
    among a random share `keep` of all similarities; these are the next dictionary. `keep` grows
    when the objective stalls; a stall at 1 is the end. Left out of the published method: its
    unsupervised start, the final re-weighting, and the cut-off at 20,000 frequent words.

    `state` is what on_step got after a round. Deterministic for equal inputs, seed and device.
    Raises InvalidSeeds. Source: Artetxe, Labaka and Agirre 2018, "A robust self-learning method",
    sections 3.3 and 3.4.
    """
    check_seeds(
        seeds, source=len(pools.x), target=len(pools.y), size=min(len(pools.x), len(pools.y))
    )
    pools = _narrow(pools)
    k = min(settings.neighbours, len(pools.x), len(pools.y))
    stand = _Stand.start(pools, seeds, settings) if state is None else _Stand.told(pools, state)
    while not stand.over(settings):

        def beat(done: int = stand.done) -> None:
            on_step(Step(done, settings.most))

        translated = normalize(pools.x @ _rotation(pools, stand.dictionary))
        found, objective = _looked_at(pools, translated, k, stand, beat)
        stand = stand.next(found, objective, settings)
        facts = {
            "objective": objective,
            "keep": stand.keep,
            "dictionary": float(len(stand.dictionary)),
        }
        on_step(Step(stand.done, settings.most, facts, stand.state))
    translated = normalize(pools.x @ _rotation(pools, stand.dictionary))
    facts = {"objective": stand.best, "rounds": float(stand.done)}
    return _mutual(
        pools, translated, seeds, k, facts, lambda: on_step(Step(stand.done, settings.most))
    )


@dataclass(frozen=True, eq=False)
class _Stand:
    """dictionary  (p, 2) pairs for the next rotation, on the pools' device; an item may be in many
    keep        share of the similarities that the next round uses
    best        the best objective so far, and since how many rounds (`stalled`)
    generator   draws the similarities that are used
    """

    done: int
    dictionary: Int64[Tensor, "p 2"]
    keep: float
    best: float
    stalled: int
    generator: torch.Generator

    @classmethod
    def start(cls, pools: Pools, seeds: list[tuple[int, int]], settings: Vecmap) -> _Stand:
        generator = torch.Generator(pools.device).manual_seed(settings.seed)
        return cls(
            0, torch.tensor(seeds, device=pools.device), settings.keep, -torch.inf, 0, generator
        )

    @classmethod
    def told(cls, pools: Pools, state: State) -> _Stand:
        generator = torch.Generator(pools.device)
        generator.set_state(state["generator"])
        done, keep, best, stalled = state["numbers"].tolist()
        return cls(
            int(done), state["dictionary"].to(pools.device), keep, best, int(stalled), generator
        )

    @property
    def state(self) -> State:
        numbers = torch.tensor([self.done, self.keep, self.best, self.stalled], dtype=torch.float64)
        return {
            "numbers": numbers,
            "dictionary": self.dictionary.cpu(),
            "generator": self.generator.get_state(),
        }

    def over(self, settings: Vecmap) -> bool:
        """Whether the rounds that use all similarities have stalled, or there were
        enough rounds.
        """
        return self.done >= settings.most or (
            self.keep >= 1.0 and self.stalled >= settings.patience
        )

    def next(self, found: BestMatches, objective: float, settings: Vecmap) -> _Stand:
        """The state after a round."""
        better = objective > self.best + settings.tolerance
        best, stalled, keep = (
            (objective, 0, self.keep) if better else (self.best, self.stalled + 1, self.keep)
        )
        if stalled >= settings.patience and keep < 1.0:
            keep, stalled = min(1.0, keep * settings.growth), 0
        # In tiny pools it may happen that no similarity is drawn.
        chosen = _dictionary(found)
        return _Stand(
            self.done + 1,
            chosen if len(chosen) else self.dictionary,
            keep,
            best,
            stalled,
            self.generator,
        )


def _narrow(pools: Pools) -> Pools:
    """Pools of no more dimensions than items, with the same cosines, which an orthogonal map cannot
    tell apart.
    """
    x, y = (
        torch.linalg.qr(pool.T.double()).R.T.float() if len(pool) < pool.shape[1] else pool
        for pool in (pools.x, pools.y)
    )
    return replace(pools, x=x, y=y)


def _rotation(pools: Pools, dictionary: Int64[Tensor, "p 2"]) -> Float32[Tensor, "dx dy"]:
    """The partial isometry nearest to the pairs, fitted in float64.

    As `align.procrustes`, without either side's own spectrum.
    """
    x, y = pools.x[dictionary[:, 0]].double(), pools.y[dictionary[:, 1]].double()
    left, values, right = torch.linalg.svd(x.T @ y, full_matrices=False)
    # Rows of length 1, so no side has a singular value above the root of their number.
    keep = values > rank_tolerance((len(x), x.shape[1], y.shape[1]), float(len(x)))
    rotation: Tensor = left[:, keep] @ right[keep]
    return rotation.float()


def _looked_at(
    pools: Pools, translated: Float32[Tensor, "n dy"], k: int, stand: _Stand, beat: Beat
) -> tuple[BestMatches, float]:
    """Every item's best partner by CSLS among the drawn similarities, and the mean cosine to the
    nearest of all.
    """
    there, _ = matching.nearest_rows(translated, pools.y, k, beat=beat)
    back, _ = matching.nearest_rows(pools.y, translated, k, beat=beat)
    objective = float(there[:, 0].double().mean() + back[:, 0].double().mean()) / 2
    return _drawn(pools, translated, there.mean(dim=1), back.mean(dim=1), stand, beat), objective


def _drawn(
    pools: Pools,
    translated: Float32[Tensor, "n dy"],
    near_x: Float32[Tensor, " n"],
    near_y: Float32[Tensor, " m"],
    stand: _Stand,
    beat: Beat,
) -> BestMatches:
    """As `matching.best`, but uses each similarity with probability `keep`, the same ones from both
    sides.
    """
    n, m = len(translated), len(pools.y)
    y_of_x = torch.empty(n, dtype=torch.int64, device=pools.device)
    score_x = near_x.new_empty(n)
    x_of_y = torch.zeros(m, dtype=torch.int64, device=pools.device)
    score_y = near_y.new_full((m,), -torch.inf)
    # The product includes the offsets, as in `neighbours.best_matches`.
    left = torch.cat([2 * translated, -near_x[:, None], torch.ones_like(near_x)[:, None]], dim=1)
    right = torch.cat([pools.y, torch.ones_like(near_y)[:, None], -near_y[:, None]], dim=1)
    for piece, scores in matching.product_blocks(left, right, beat=beat):
        if stand.keep < 1.0:
            drawn = torch.rand(scores.shape, generator=stand.generator, device=pools.device)
            scores.masked_fill_(drawn >= stand.keep, -torch.inf)
        torch.max(scores, dim=1, out=(score_x[piece], y_of_x[piece]))
        column, row = scores.max(dim=0)
        better = column > score_y
        x_of_y = torch.where(better, row + piece.start, x_of_y)
        score_y = torch.where(better, column, score_y)
    return BestMatches(y_of_x, score_x, x_of_y, score_y)


def _dictionary(found: BestMatches) -> Int64[Tensor, "p 2"]:
    """Each item with its best partner, from both sides. A pair that chooses each other counts
    twice.
    """
    x = torch.arange(len(found.y_of_q), device=found.y_of_q.device)
    y = torch.arange(len(found.q_of_y), device=found.q_of_y.device)
    chosen = torch.cat(
        [torch.stack([x, found.y_of_q], dim=1), torch.stack([found.q_of_y, y], dim=1)]
    )
    # An item without any drawn similarity has no best partner.
    return chosen[torch.cat([found.score_q, found.score_y]) > -torch.inf]


def _mutual(
    pools: Pools,
    translated: Float32[Tensor, "n dy"],
    seeds: list[tuple[int, int]],
    k: int,
    facts: dict[str, float],
    beat: Beat,
) -> GrownPairs:
    """The seeds, then the other pairs that choose each other by CSLS, the best scores first."""
    offset_x, offset_y = matching.hubness_offsets(translated, pools.y, k, beat=beat)
    found = matching.best_matches(
        translated, pools.y, offset_q=offset_x, offset_y=offset_y, beat=beat
    )
    mutual = matching.partner_pairs(found.partners)
    mutual = mutual[found.score_q[mutual[:, 0]].argsort(descending=True, stable=True)]
    taken_x, taken_y = ({pair[side] for pair in seeds} for side in (0, 1))
    pairs = [*seeds, *((i, j) for i, j in mutual.tolist() if i not in taken_x and j not in taken_y)]
    return GrownPairs(
        torch.tensor(pairs),
        torch.full((len(pairs),), torch.nan),
        {**facts, "pairs": float(len(pairs))},
    )
