"""How well a set of anchors translates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev

from torch import Tensor

from app.maths.geometry.space import Space
from app.maths.translators import methods
from app.maths.translators.translator import apply
from research.anchor_strategies.pools import SEEDS
from research.definitions import measures

Numbers = dict[str, float]

#: the method and options of all translations here, independent of the defaults
GRADED: methods.Options = {"encode_power": 1.0, "decode_power": 0.25, "ridge": 1.0}


def translated(
    source: Space, target: Space, items: Tensor, native: Tensor, centre: Tensor
) -> Numbers:
    """Recall@10 and MRR of items by the graded method.

    `centre` is one mean of the target for everything that is compared.
    """
    translator = methods.fit(
        "graded", source, target, methods.resolve("graded", GRADED, anchors=source.size)
    )
    return found(apply(translator, items).vectors, native, centre)


def found(moved: Tensor, native: Tensor, centre: Tensor) -> Numbers:
    """Recall@10 and MRR of vectors."""
    found = measures(moved - centre, native - centre)
    return {name: float(found[name].mean()) for name in ("recall", "mrr")}


def over_seeds(once: Callable[[int], Sequence[Numbers]]) -> dict[str, Numbers]:
    """Mean and standard deviation over the seeds, of the mean over each seed's rows (pairs, for
    example).
    """
    rows = [averaged(once(seed)) for seed in SEEDS]
    return {
        name: {"mean": mean(row[name] for row in rows), "std": stdev(row[name] for row in rows)}
        for name in rows[0]
    }


def averaged(rows: Sequence[Mapping[str, float]]) -> Numbers:
    return {name: mean(row[name] for row in rows) for name in rows[0]}
