"""The paper's Tables 2 and 6: a head of the target's space reads the source's items, through
anchors that grew from seeds.

Two ways. Relative, as in the paper: the head is trained on the target's relative vectors and reads
the source's. Graded: a head of the target's own vectors reads translations. Heads are multinomial
logistic regressions trained on the target's pool; they read items that neither pool has. Accuracy
and macro F1. The paper's mean absolute error is of star ratings; no labels here have an order, so
there is no such column.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from torch import Tensor

from app.maths.translators.translator import apply
from benchmarks.bootstrap import growers
from benchmarks.bootstrap.cells import Cell, Measured
from benchmarks.bootstrap.draws import Draw, draw
from research.bootstrap import retrieval
from research.bootstrap.protocol import graded, macro_f1, relative, unit
from research.bootstrap.retrieval import ALL_TRUE, GRADED, PLACES, RELATIVE, SEED, SLOW, TRUE
from research.stitching.head import Head, train_head

NAME = "stitching"
TASKS = (
    "CIFAR-10, V1 1.0 -> SqueezeNet",
    "CIFAR-10, V2 -> SqueezeNet",
    "Banking77, MiniLM -> static",
    "Banking77, minilm3 -> static",
)
COUNTS = (15,)
DRAWS = 3
#: penalties of the heads: what research.stitching found best for relative vectors, and about right
#: for absolute ones
STRENGTH = 10.0


def cells(*, quick: bool, draws: int | None) -> Iterator[Cell]:
    """By task and draw."""
    for place in TASKS[1:3] if quick else TASKS:
        for number in range(1 if quick else min(draws or DRAWS, DRAWS)):
            for method in (TRUE, SEED, *growers.METHODS):
                if number < SLOW.get(method, ((), DRAWS))[1]:
                    for count in (0,) if method == TRUE else COUNTS:
                        yield Cell((NAME, place, method, count, number), measure)


def measure(place: str, method: str, count: int, number: int) -> Measured:
    """All rows of one set of anchors, from the source to the target (forth) and back."""
    drawn = draw(PLACES[place], number)
    sets, told = retrieval.anchors(method, drawn, count, number)
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for way, side in (("forth", drawn), ("back", drawn.flipped)):
        native = _native(place, number, way)
        for name, pairs in sets.items():
            turned = pairs if way == "forth" else pairs.flip(1)
            translated = apply(graded(*_anchors(side, turned)), side.unseen_x.float()).vectors
            rows.setdefault(f"{name}, {GRADED}", {})[way] = _accuracy(native, translated, side)
            if name != ALL_TRUE:
                rows.setdefault(f"{name}, {RELATIVE}", {})[way] = _by_relative(side, turned)
        if method == TRUE:
            rows.setdefault("native", {})[way] = _accuracy(native, side.unseen_y.float(), side)
    return told | {"rows": rows}


@lru_cache(4)
def _native(place: str, number: int, way: str) -> Head:
    """A head of the target's own vectors."""
    drawn = draw(PLACES[place], number)
    side = drawn if way == "forth" else drawn.flipped
    return _trained(side, side.y.float())


def _trained(side: Draw, vectors: Tensor) -> Head:
    """A head trained on vectors of the target's pool."""
    labels = _labels(side.labels)
    return train_head(
        vectors, labels[side.partner.argsort()], classes=int(labels.max()) + 1, strength=STRENGTH
    )


def _by_relative(side: Draw, pairs: Tensor) -> dict[str, float]:
    means = side.x.mean(dim=0), side.y.mean(dim=0)
    anchors = [unit(rows, mean) for rows, mean in zip(_anchors(side, pairs), means, strict=True)]
    # The coordinates are a rotation of the cosines, which changes neither head nor penalty.
    found = relative(unit(side.unseen_x, means[0]), anchors[0], unit(side.y, means[1]), anchors[1])
    return _accuracy(_trained(side, found.targets), found.queries, side)


def _anchors(side: Draw, pairs: Tensor) -> tuple[Tensor, Tensor]:
    return side.x[pairs[:, 0]], side.y[pairs[:, 1]]


def _accuracy(head: Head, vectors: Tensor, side: Draw) -> dict[str, float]:
    labels = _labels(side.unseen_labels)
    predicted = head.logits(vectors).argmax(dim=1)
    f1 = macro_f1(predicted, labels, classes=head.weight.shape[0])
    return {"accuracy": float((predicted == labels).double().mean()), "f1": f1}


def _labels(labels: Tensor | None) -> Tensor:
    if labels is None:
        raise ValueError("these items have no classes")
    return labels
