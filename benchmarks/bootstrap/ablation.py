"""Which parts of a method matter: its settings changed one at a time, about where it begins to succeed."""

from __future__ import annotations

from collections.abc import Iterator

import counts
from cells import Cell, Measured
from growers import UNCHANGED, Changes

NAME = "ablation"
#: by method: what is changed, under which name
VARIATIONS: dict[str, dict[str, Changes]] = {
    "paper": {
        "seeds not frozen": {"freeze_seeds": False},
        "argmax of rows": {"argmax": "rows"},
        "125 steps of .05": {"steps": 125, "learning_rate": 0.05},
    },
}
#: (case, seeds) of each method. Self-learning: easy, a small pool, across architectures, a weak word space
PLACES: dict[str, tuple[tuple[str, int], ...]] = {
    "paper": (("texts, bge-large -> jina-v3", 15), ("texts, Qwen3 -> mpnet", 25)),
    "self-learning": (
        ("Banking77, MiniLM -> static", 5),
        ("texts, Qwen3 -> mpnet", 10),
        ("CIFAR-10, V1 .75 -> .25", 5),
        ("CIFAR-10, V2 -> SqueezeNet", 15),
        ("words, googlenews -> w2v", 25),
    ),
}
DRAWS = 5
AS_IT_IS = "as it is"


def cells(*, quick: bool, draws: int | None) -> Iterator[Cell]:
    """By method, case and draw; as it is, a run is one of `counts`."""
    for method, variations in VARIATIONS.items():
        for name, count in PLACES[method][:1] if quick else PLACES[method]:
            for number in range(draws or (1 if quick else DRAWS)):
                for variation in (AS_IT_IS, *variations):
                    yield Cell((NAME, name, f"{method}, {variation}", count, number), measure, method)


def measure(name: str, varied: str, count: int, number: int) -> Measured:
    """As `counts` does."""
    method, _, variation = varied.partition(", ")
    changes = UNCHANGED if variation == AS_IT_IS else VARIATIONS[method][variation]
    return counts.judged(name, method, count, number, changes)
