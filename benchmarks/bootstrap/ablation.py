"""Which parts of a method matter: its settings changed one at a time, where the method begins to
succeed.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bootstrap import counts
from benchmarks.bootstrap.cells import Cell, Measured
from benchmarks.bootstrap.growers import UNCHANGED, Changes

NAME = "ablation"
#: by method: the name of each variation and what it changes
#: self-learning makes one attempt, because later attempts differ from the first in exactly these
#: settings
VARIATIONS: dict[str, dict[str, Changes]] = {
    "self-learning": {
        "one attempt": {"attempts": 1},
        "hard choices from the start": {"attempts": 1, "schedule.breadth": 0.0},
        "a narrow start": {"attempts": 1, "schedule.breadth": 0.01},
        "overlap as it is": {"attempts": 1, "schedule.flattening": 1.0},
        "orthogonal map": {"attempts": 1, "schedule.flattening": 0.0},
        "coordinates as they are": {"attempts": 1, "schedule.power": 1.0},
        "whitened coordinates": {"attempts": 1, "schedule.power": 0.0},
        "32 dimensions": {"attempts": 1, "schedule.dimensions": 32},
        "10 rounds": {"attempts": 1, "rounds": 10},
        "no refinement": {"attempts": 1, "refinements": 0},
    },
    "paper": {
        "seeds not frozen": {"freeze_seeds": False},
        "argmax of rows": {"argmax": "rows"},
        "125 steps of .05": {"steps": 125, "learning_rate": 0.05},
    },
}
#: (case, seeds) of each method. Self-learning: easy, a small pool, across architectures, a weak
#: word space
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
DRAWS = 2
AS_IT_IS = "as it is"


def cells(*, quick: bool, draws: int | None) -> Iterator[Cell]:
    """By method, case and draw. The unchanged method has the cells of `counts`."""
    for method, variations in VARIATIONS.items():
        for name, count in PLACES[method][:1] if quick else PLACES[method]:
            for number in range(1 if quick else min(draws or DRAWS, DRAWS)):
                for variation in (AS_IT_IS, *variations):
                    yield Cell(
                        (NAME, name, f"{method}, {variation}", count, number), measure, method
                    )


def measure(name: str, varied: str, count: int, number: int) -> Measured:
    """Measure one variation as `counts` does."""
    method, _, variation = varied.partition(", ")
    changes = UNCHANGED if variation == AS_IT_IS else VARIATIONS[method][variation]
    return counts.judged(name, method, count, number, changes)
