"""Two pools in different orders, and seeds, drawn from the tasks of benchmarks/quality/data.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from app.maths.bootstrap.pools import Pools, fit_pools
from benchmarks.quality import data


@dataclass(frozen=True)
class Case:
    """An ordered pair of a task's encoders.

    `name` is for tables. `items` is the most that each pool has; None takes all items.
    """

    name: str
    task: str
    source: str
    target: str
    items: int | None = 1_500


@dataclass(frozen=True, eq=False)
class Draw:
    """x, y            (n, d_x), (n, d_y) raw vectors; the rows of y are in another order
    partner         (n,) the row of y that is row i of x
    """

    x: Tensor
    y: Tensor
    partner: Tensor

    @cached_property
    def pools(self) -> Pools:
        """What a method gets."""
        return fit_pools(self.x, self.y)

    def seeds(self, count: int) -> list[tuple[int, int]]:
        """The first `count` true pairs. Fewer are the first of more."""
        return list(enumerate(self.partner[:count].tolist()))

    def right(self, pairs: Tensor) -> Tensor:
        """(p,) bool: which pairs (p, 2) are true."""
        return self.partner[pairs[:, 0]] == pairs[:, 1]


@lru_cache(2)
def draw(case: Case, number: int) -> Draw:
    """Rows of both pools, each in its own random order. Equal numbers give equal draws."""
    task = data.TASKS[case.task]()
    generator = torch.Generator().manual_seed(number)
    order = torch.randperm(task.items, generator=generator)
    pool = order[: case.items]
    mixed = torch.randperm(len(pool), generator=generator)
    x, y = task.encoders[case.source], task.encoders[case.target]
    return Draw(x=x[pool], y=y[pool[mixed]], partner=mixed.argsort())


#: pairs of encoders, by name
CASES = {
    case.name: case
    for case in (
        Case("Banking77, MiniLM -> static", "banking77", "minilm6-384", "static-256"),
        Case("Banking77, minilm3 -> static", "banking77", "minilm3-512", "static-256"),
        Case("CIFAR-10, V1 1.0 -> 0.5", "cifar10", "mobilenet_v1_100", "mobilenet_v1_050"),
        Case("CIFAR-10, V1 .75 -> .25", "cifar10", "mobilenet_v1_075", "mobilenet_v1_025"),
        Case("CIFAR-10, SqueezeNet -> V1 .75", "cifar10", "squeezenet_v10", "mobilenet_v1_075"),
        Case("CIFAR-10, V2 -> SqueezeNet", "cifar10", "mobilenet_v2_100_ptq", "squeezenet_v10"),
        Case(
            "texts, bge-large -> jina-v3",
            "text-embeddings",
            "BAAI_bge-large-en-v1.5",
            "jinaai_jina-embeddings-v3",
            None,
        ),
        Case(
            "texts, Qwen3 -> mpnet",
            "text-embeddings",
            "Qwen_Qwen3-Embedding-0.6B",
            "sentence-transformers_all-mpnet-base-v2",
            None,
        ),
        Case("words, googlenews -> w2v", "words", "googlenews", "w2v"),
        Case("words, w2v -> fasttext", "words", "w2v", "fasttext"),
        Case("words, googlenews -> fasttext", "words", "googlenews", "fasttext"),
    )
}
