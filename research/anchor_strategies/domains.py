"""Anchors from another data set than the items: Banking77's questions among TREC's, and the
reverse.
"""

from __future__ import annotations

from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from app.maths.geometry.sampling import draw_uniformly
from app.maths.geometry.space import fit_space
from research.anchor_strategies.measure import Numbers, alike, over_seeds, relatives, translated
from research.anchor_strategies.pools import POOL, TEXT_ENCODERS, Pools, texts

SIZES = (30, 100, 300, 1_000)
ITEMS = 500

#: share of the anchors that comes from the items' own domain
SHARES = {"in domain": 1.0, "half and half": 0.5, "a tenth in domain": 0.1, "out of domain": 0.0}

NOTE = (
    "500 test items of one data set, anchors drawn uniformly from the training items of its own, "
    "of the other, or of both; three text encoders, six ordered pairs; mean and standard deviation "
    "over 5 seeds. Relative: Jaccard, MRR and cosine of relative vectors. Translated: recall@10 "
    "and MRR by the graded method (1, .25), lambda 1. Both are searched among the 500 items; "
    "translations are centred on the mean of the items' own training set, whatever the anchors."
)


def measure() -> dict[str, Any]:
    """Measure by data, number of anchors and share."""
    banking, trec = texts("banking77", ITEMS), texts("trec", ITEMS)
    found = {
        f"{own.title} items": {
            str(size): {
                name: over_seeds(partial(_pairs, own, other, size, share))
                for name, share in SHARES.items()
            }
            for size in SIZES
        }
        for own, other in ((banking, trec), (trec, banking))
    }
    return {"note": NOTE, "tables": found}


def _pairs(own: Pools, other: Pools, size: int, share: float, seed: int) -> list[Numbers]:
    """Each ordered pair by the same anchors."""
    near, far = round(share * size), size - round(share * size)
    rows = {pools: torch.tensor(draw_uniformly(POOL, size=size, seed=seed)) for pools in (own, other)}
    known = {
        name: torch.cat([own.pool[name][rows[own][:near]], other.pool[name][rows[other][:far]]])
        for name in TEXT_ENCODERS
    }
    return [
        _pair(own, known[source], known[target], source, target)
        for source, target in permutations(TEXT_ENCODERS, 2)
    ]


def _pair(
    own: Pools, source_anchors: Tensor, target_anchors: Tensor, source: str, target: str
) -> Numbers:
    items = own.items[source], own.items[target]
    close = alike(*relatives((source_anchors, target_anchors), items))
    x, y = fit_space(source_anchors), fit_space(target_anchors)
    moved = translated(x, y, *items, own.pool[target].mean(dim=0))
    return {f"relative {name}": value for name, value in close.items()} | {
        f"translated {n}": v for n, v in moved.items()
    }
