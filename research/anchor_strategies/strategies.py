"""The paper's Tables 7 and 8 on this data, and the same strategies by how well their anchors
translate.

Tables: Jaccard and MRR at 10 neighbours among 2,000 items, and cosine, of relative vectors of the
same items in two spaces; mean and standard deviation over 5 seeds. Ours are centred on the anchors'
mean; 'uniform, not centred' is the paper's own formula. Strategies look at the source's space. The
paper's words are 20,000 by the public fastText and word2vec, with 10 seeds; our own word spaces saw
4 million words of text each. Its images are 20,000 of CIFAR-10 by ViT-base and ViT-small; next to
them stand mobilenet_v1_050 and mobilenet_v1_025.

Translation: items that are no anchors, translated by the graded method (1, .25), lambda 1, and
searched for among 1,000; mean over all ordered pairs of the data's encoders. Centred on the mean of
the target's pool, whatever the anchors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from app.maths.geometry.space import fit_space
from research.anchor_strategies.measure import (
    Numbers,
    alike,
    cosines,
    over_seeds,
    relatives,
    translated,
)
from research.anchor_strategies.pools import Pools, choose, cifar10, texts, words

SIZES = (100, 300)

#: for the tables, 300 anchors for words and 500 for images, as there; and how many items, of the
#: paper's 20,000
WORD_ANCHORS, IMAGE_ANCHORS, TABLE_ITEMS = 300, 500, 2_000
TRANSLATED_ITEMS = 1_000

PLAIN = "uniform, not centred"

#: Jaccard, MRR and cosine of the relative vectors, one direction after the other
PAPER: dict[str, dict[str, Any]] = {
    "fastText, word2vec": {
        "fasttext to w2v": {
            "uniform": (0.34, 0.94, 0.86),
            "fps": (0.34, 0.94, 0.81),
            "kmeans": (0.35, 0.94, 0.87),
            "top1000": (0.27, 0.84, 0.85),
            "top5000": (0.32, 0.92, 0.86),
        },
        "w2v to fasttext": {
            "uniform": (0.39, 0.98, 0.86),
            "fps": (0.41, 0.98, 0.83),
            "kmeans": (0.39, 0.97, 0.87),
            "top1000": (0.35, 0.97, 0.85),
            "top5000": (0.38, 0.97, 0.86),
        },
    },
    "CIFAR-10": {
        "mobilenet_v1_050 to mobilenet_v1_025": {
            "uniform": (0.11, 0.27, 0.97),
            "fps": (0.12, 0.37, 0.96),
            "kmeans": (0.11, 0.25, 0.97),
        },
        "mobilenet_v1_025 to mobilenet_v1_050": {
            "uniform": (0.11, 0.30, 0.97),
            "fps": (0.12, 0.39, 0.96),
            "kmeans": (0.10, 0.27, 0.97),
        },
    },
}


def tables() -> dict[str, Any]:
    """By data and direction, the figures of each strategy next to the paper's."""
    found: dict[str, Any] = {}
    for pools, size in (
        *((each, WORD_ANCHORS) for each in words(TABLE_ITEMS)),
        (cifar10(TABLE_ITEMS), IMAGE_ANCHORS),
    ):
        published = PAPER.get(pools.title, {})
        for source, target in pools.pairs:
            direction = f"{source} to {target}"
            rows = {
                name: over_seeds(partial(_alike, pools, name, source, target, size))
                for name in _rows(pools)
            }
            found.setdefault(pools.title, {})[direction] = {
                name: numbers | _paper(published.get(direction, {}).get(name))
                for name, numbers in rows.items()
            }
    return found


def _rows(pools: Pools) -> tuple[str, ...]:
    return (*pools.strategies, PLAIN)


def _paper(numbers: tuple[float, float, float] | None) -> dict[str, Any]:
    return (
        {}
        if numbers is None
        else {"paper": dict(zip(("jaccard", "mrr", "cosine"), numbers, strict=True))}
    )


def _alike(pools: Pools, row: str, source: str, target: str, size: int, seed: int) -> list[Numbers]:
    anchors = choose(pools, row.partition(",")[0], source, size=size, seed=seed)
    known = pools.pool[source][anchors], pools.pool[target][anchors]
    items = pools.items[source], pools.items[target]
    if row == PLAIN:
        return [alike(cosines(items[0], known[0]), cosines(items[1], known[1]))]
    return [alike(*relatives(known, items))]


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
