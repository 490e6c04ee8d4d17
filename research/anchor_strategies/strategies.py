"""Strategies for the choice of anchors, by how well their anchors translate.

Items that are no anchors, translated by the graded method (1, .25), lambda 1, and searched for
among 1,000; mean over all ordered pairs of the data's encoders, mean and standard deviation over 5
seeds. Centred on the mean of the target's pool, whatever the anchors. Strategies look at the
source's space.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from app.maths.geometry.space import fit_space
from research.anchor_strategies.measure import Numbers, over_seeds, translated
from research.anchor_strategies.pools import Pools, choose, cifar10, texts, words

SIZES = (100, 300)
TRANSLATED_ITEMS = 1_000


def translation() -> dict[str, Any]:
    """Measure by data, number of anchors and strategy."""
    every = (
        *words(TRANSLATED_ITEMS),
        cifar10(TRANSLATED_ITEMS),
        texts("banking77", TRANSLATED_ITEMS),
    )
    return {
        pools.title: {
            str(size): {
                name: over_seeds(partial(_translated, pools, name, size))
                for name in pools.strategies
            }
            for size in SIZES
        }
        for pools in every
    }


def _translated(pools: Pools, strategy: str, size: int, seed: int) -> list[Numbers]:
    """Each ordered pair."""
    rows = []
    for source, target in pools.pairs:
        anchors = torch.tensor(choose(pools, strategy, source, size=size, seed=seed))
        x, y = fit_space(pools.pool[source][anchors]), fit_space(pools.pool[target][anchors])
        rows.append(
            translated(
                x, y, pools.items[source], pools.items[target], pools.pool[target].mean(dim=0)
            )
        )
    return rows
