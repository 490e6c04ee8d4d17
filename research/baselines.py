"""Baselines: a rotation from the seeds alone, and self-learning as in vecmap.

Both translate with an orthogonal map and accept the pairs that choose each other by CSLS. They
estimate no confidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap import neighbours as matching
from app.maths.bootstrap.neighbours import csls_factors, no_beat, product_blocks
from app.maths.bootstrap.pools import Pools
from app.maths.geometry.spectrum import rank_tolerance
from research.grown_pairs import GrownPairs, check_seeds


@dataclass(frozen=True)
class Vecmap:
    """keep        share of the similarities that the first rounds use, times `growth` at each stall
    patience    a stall is so many rounds that improve the mean cosine to the nearest translation by
                no more than `tolerance`
    most        rounds at most
    seed        draws the similarities that are used
    """

    keep: float = 0.1
    growth: float = 2.0
    patience: int = 10
    tolerance: float = 1e-6
    most: int = 500
    seed: int = 0


def procrustes(pools: Pools, seeds: list[tuple[int, int]]) -> GrownPairs:
    """The rotation of the seeds, then the pairs that choose each other by CSLS, the best scores
    first. Raises InvalidSeeds.
    """
    pools = _checked(pools, seeds)
    dictionary = torch.tensor(seeds, device=pools.device)
    return _mutual(pools, normalize(pools.x @ _rotation(pools, dictionary)), seeds, {})


def vecmap(pools: Pools, seeds: list[tuple[int, int]], settings: Vecmap) -> GrownPairs:
    """Self-learning by orthogonal maps with a stochastic dictionary, from the seeds. The seeds
    themselves may be dropped.

    One round: the rotation of the dictionary; every item's best partner by CSLS, from both sides,
    among a random share `keep` of all similarities; these are the next dictionary. `keep` grows
    when the objective stalls; a stall at 1 is the end. Left out of the published method: its
    unsupervised start, the final re-weighting, and the cut-off at 20,000 frequent words.
    Deterministic for equal inputs, seed and device. Raises InvalidSeeds. Source: Artetxe, Labaka
    and Agirre 2018, "A robust self-learning method", sections 3.3 and 3.4.
    """
    pools = _checked(pools, seeds)
    generator = torch.Generator(pools.device).manual_seed(settings.seed)
    dictionary = torch.tensor(seeds, device=pools.device)
    keep, best, stalled, rounds = settings.keep, -torch.inf, 0, 0
    while rounds < settings.most and not (keep >= 1.0 and stalled >= settings.patience):
        translated = normalize(pools.x @ _rotation(pools, dictionary))
        chosen, objective = match_drawn(pools, translated, keep, generator)
        if objective > best + settings.tolerance:
            best, stalled = objective, 0
        else:
            stalled += 1
        if stalled >= settings.patience and keep < 1.0:
            keep, stalled = min(1.0, keep * settings.growth), 0
        # In tiny pools it may happen that no similarity is drawn.
        dictionary, rounds = (chosen if len(chosen) else dictionary), rounds + 1
    translated = normalize(pools.x @ _rotation(pools, dictionary))
    return _mutual(pools, translated, seeds, {"objective": best, "rounds": float(rounds)})


def _checked(pools: Pools, seeds: list[tuple[int, int]]) -> Pools:
    """Pools of no more dimensions than items, with the same cosines, which an orthogonal map cannot
    tell apart. Raises InvalidSeeds.
    """
    smaller = min(len(pools.x), len(pools.y))
    check_seeds(seeds, source=len(pools.x), target=len(pools.y), size=smaller)
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


def match_drawn(
    pools: Pools, translated: Float32[Tensor, "n dy"], keep: float, generator: torch.Generator
) -> tuple[Int64[Tensor, "p 2"], float]:
    """Every item's best partner by CSLS among the drawn similarities, from both sides, where a pair
    that chooses each other counts twice; and the mean cosine to the nearest of all.

    keep  the probability that a similarity is drawn, the same ones from both sides
    """
    there, _ = matching.nearest_rows(translated, pools.y, 1)
    back, _ = matching.nearest_rows(pools.y, translated, 1)
    objective = float(there.double().mean() + back.double().mean()) / 2
    y_of_x, score_x, x_of_y, score_y = _best(translated, pools.y, keep, generator)
    x = torch.arange(len(translated), device=pools.device)
    y = torch.arange(len(pools.y), device=pools.device)
    chosen = torch.cat([torch.stack([x, y_of_x], dim=1), torch.stack([x_of_y, y], dim=1)])
    # An item without any drawn similarity has no best partner.
    return chosen[torch.cat([score_x, score_y]) > -torch.inf], objective


def _best(
    q: Float32[Tensor, "n d"],
    y: Float32[Tensor, "m d"],
    keep: float = 1.0,
    generator: torch.Generator | None = None,
) -> tuple[Int64[Tensor, " n"], Float32[Tensor, " n"], Int64[Tensor, " m"], Float32[Tensor, " m"]]:
    """The best row of the other side by CSLS for each row, and its score, among drawn scores."""
    left, right = csls_factors(q, y, beat=no_beat)
    y_of_q, score_q = (
        torch.empty(len(q), dtype=torch.int64, device=q.device),
        torch.empty_like(q[:, 0]),
    )
    q_of_y, score_y = (
        torch.zeros_like(y[:, 0], dtype=torch.int64),
        torch.full_like(y[:, 0], -torch.inf),
    )
    for piece, scores in product_blocks(left, right, beat=no_beat):
        if keep < 1.0:
            drawn = torch.rand(scores.shape, generator=generator, device=q.device)
            scores.masked_fill_(drawn >= keep, -torch.inf)
        torch.max(scores, dim=1, out=(score_q[piece], y_of_q[piece]))
        column, row = scores.max(dim=0)
        better = column > score_y
        torch.where(better, row + piece.start, q_of_y, out=q_of_y)
        torch.where(better, column, score_y, out=score_y)
    return y_of_q, score_q, q_of_y, score_y


def _mutual(
    pools: Pools,
    translated: Float32[Tensor, "n dy"],
    seeds: list[tuple[int, int]],
    facts: Mapping[str, float],
) -> GrownPairs:
    """The seeds, then the other pairs that choose each other by CSLS, the best scores first."""
    y_of_x, score_x, x_of_y, _ = _best(translated, pools.y)
    rows = torch.arange(len(translated), device=pools.device)
    mutual = torch.stack([rows, y_of_x], dim=1)[x_of_y[y_of_x] == rows]
    mutual = mutual[score_x[mutual[:, 0]].argsort(descending=True, stable=True)]
    taken_x, taken_y = ({pair[side] for pair in seeds} for side in (0, 1))
    others = ((i, j) for i, j in mutual.tolist() if i not in taken_x and j not in taken_y)
    pairs = torch.tensor([*seeds, *others])
    confidence = torch.full((len(pairs),), torch.nan)
    return GrownPairs(pairs, confidence, {**facts, "pairs": float(len(pairs))})
