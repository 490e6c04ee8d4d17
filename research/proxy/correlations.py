"""Correlations of similarity and accuracy, over time and across models."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import correlation, mean, stdev
from typing import Any

from research.proxy.yardstick import Look

#: the paper leaves out models whose best validation accuracy is below FLOOR; GOOD is what counts as
#: good here
FLOOR, GOOD = 0.5, 0.7

SIMILARITIES = ("similarity", "cka")


def over_time(histories: Sequence[Sequence[Look]]) -> dict[str, Any]:
    """The paper's number: each model's own correlation over its epochs, for models
    above the floor.
    """
    found: dict[str, Any] = {"models": len(histories)}
    for name in SIMILARITIES:
        each = [
            correlation([look.named(name) for look in looks], [look.validation for look in looks])
            for looks in histories
            if len({look.named(name) for look in looks}) > 1
            and len({look.validation for look in looks}) > 1
        ]
        found[name] = {"mean": mean(each), "std": stdev(each)}
    return found


def across(histories: Sequence[Sequence[Look]]) -> dict[str, Any]:
    """One correlation over all models, at the end of their training."""
    ends = [looks[-1] for looks in histories]
    found: dict[str, Any] = {"models": len(ends)}
    for name in SIMILARITIES:
        values = [look.named(name) for look in ends]
        found[name] = {
            "validation": correlation(values, [look.validation for look in ends]),
            "test": correlation(values, [look.test for look in ends]),
        }
    return found


def best(looks: Sequence[Look]) -> float:
    """A model's best validation accuracy."""
    return max(look.validation for look in looks)


def groups(histories: Sequence[Sequence[Look]]) -> dict[str, list[Sequence[Look]]]:
    """All models, the paper's selection, and the good ones only."""
    return {
        "all": list(histories),
        f"validation from {FLOOR}": [looks for looks in histories if best(looks) >= FLOOR],
        f"validation from {GOOD}": [looks for looks in histories if best(looks) >= GOOD],
    }
