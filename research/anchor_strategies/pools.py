"""Where anchors come from: pools of items that several encoders embedded, and the strategies that
choose from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from app.maths.geometry.space import draw_rows
from benchmarks.common import DATA
from research.anchors import farthest, medoids

TEXT_ENCODERS = ("minilm3-512", "minilm6-384", "static-256")
IMAGE_ENCODERS = ("mobilenet_v1_050", "mobilenet_v1_025")

SEEDS = tuple(range(5))

#: most rows that anchors are chosen from: farthest points of more take minutes
POOL = 4_000

#: the paper skips the most frequent words, which are mostly stop words
SKIPPED = 400
FREQUENT = {"top1000": 1_000, "top5000": 5_000}


@dataclass(frozen=True, eq=False)
class Pools:
    """Items by several encoders; row i is the same item in each.

    pool   (p, d) by encoder: what may be an anchor
    items  (n, d) by encoder: what is compared and translated, none of it in the pool
    ranks  (p,) how many items of the whole vocabulary are more frequent; None without counts
    """

    title: str
    pool: Mapping[str, Tensor]
    items: Mapping[str, Tensor]
    ranks: Tensor | None = None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every ordered pair of encoders."""
        return list(permutations(self.pool, 2))

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies that this data allows."""
        return ("uniform", "fps", "kmeans", *(FREQUENT if self.ranks is not None else ()))


def choose(pools: Pools, strategy: str, source: str, *, size: int, seed: int) -> list[int]:
    """Rows of the pool, by the geometry of the source's space if the strategy uses one. k-means may
    return a few less.
    """
    if strategy == "uniform":
        return draw_rows(len(pools.pool[source]), size, seed=seed).tolist()
    if strategy == "fps":
        return _order(pools, source, seed)[:size]
    if strategy == "kmeans":
        return _medoids(pools, source, size, seed)
    assert pools.ranks is not None
    frequent = (
        ((pools.ranks >= SKIPPED) & (pools.ranks < SKIPPED + FREQUENT[strategy]))
        .nonzero()
        .flatten()
        .tolist()
    )
    return [frequent[place] for place in draw_rows(len(frequent), size, seed=seed).tolist()]


@cache
def _order(pools: Pools, source: str, seed: int) -> list[int]:
    """All farthest points: fewer are the first of them."""
    rows = pools.pool[source]
    return farthest(rows, size=len(rows), seed=seed)


@cache
def _medoids(pools: Pools, source: str, size: int, seed: int) -> list[int]:
    return medoids(pools.pool[source], size=size, seed=seed)


def archive(path: str) -> Any:
    return np.load(DATA / path, allow_pickle=False)


def tensor(array: Any) -> Tensor:
    return torch.from_numpy(array).float()


def split(
    title: str, vectors: Mapping[str, Tensor], items: int, ranks: Tensor | None = None
) -> Pools:
    """Some rows as items, and up to POOL others to choose from: the same draw every time."""
    rows = len(next(iter(vectors.values())))
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    held, open_ = order[:items], order[items : items + POOL]
    return Pools(
        title,
        {name: each[open_] for name, each in vectors.items()},
        {name: each[held] for name, each in vectors.items()},
        None if ranks is None else ranks[open_],
    )


@cache
def words(items: int) -> tuple[Pools, Pools]:
    """FastText and word2vec, as in the paper; and word2vec next to the GoogleNews vectors of the
    words that they share.
    """
    file = archive("encoders/words/words.npz")
    counts = torch.from_numpy(file["count_w2v"].astype(np.int64) + file["count_fasttext"])
    ranks = torch.empty_like(counts)
    ranks[counts.argsort(descending=True, stable=True)] = torch.arange(len(counts))
    ours = {"fasttext": tensor(file["fasttext"]), "w2v": tensor(file["w2v"])}
    known = torch.from_numpy(file["googlenews_rows"]).long()
    news = {"googlenews": tensor(file["googlenews"]), "w2v": ours["w2v"][known]}
    return split("fastText, word2vec", ours, items, ranks), split(
        "GoogleNews, word2vec", news, items, ranks[known]
    )


@cache
def cifar10(items: int) -> Pools:
    files = {name: archive(f"cifar10-embeddings/{name}.npz") for name in IMAGE_ENCODERS}
    pool = {name: tensor(file["train"]) for name, file in files.items()}
    return Pools(
        "CIFAR-10", pool, {name: tensor(file["test"][:items]) for name, file in files.items()}
    )


@cache
def texts(name: str, items: int) -> Pools:
    """The questions of `banking77` or `trec` by three encoders: training ones to choose from, test
    ones as items.
    """
    files = {encoder: archive(f"encoders/emb/{name}.{encoder}.npz") for encoder in TEXT_ENCODERS}
    sizes = {part: len(files[TEXT_ENCODERS[0]][part]) for part in ("train", "test")}
    rows = {
        part: torch.randperm(size, generator=torch.Generator().manual_seed(0))
        for part, size in sizes.items()
    }
    return Pools(
        {"banking77": "Banking77", "trec": "TREC"}[name],
        {encoder: tensor(file["train"])[rows["train"][:POOL]] for encoder, file in files.items()},
        {encoder: tensor(file["test"])[rows["test"][:items]] for encoder, file in files.items()},
    )
