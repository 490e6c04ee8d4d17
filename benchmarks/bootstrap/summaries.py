"""From measured cells to the sections of the report: means and deviations over draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import mean, stdev
from typing import Any

from benchmarks.bootstrap import counts
from benchmarks.bootstrap.cells import Found, Key, Measured

Section = dict[str, Any]


def of_counts(found: Found) -> Section:
    """By case, method and number of seeds; and how often the estimate of a run is true, over all of
    them.
    """
    cases: dict[str, dict[str, dict[str, Any]]] = {}
    for (case, method, count), many in _groups(found, lambda key: key[1:4]):
        row = {
            "draws": len(many),
            "pairs": mean(cell["pairs"] for cell in many),
            "share": _spread(cell["right"] / max(1, cell["pairs"]) for cell in many),
            "good": sum(counts.good(cell) for cell in many),
        }
        cases.setdefault(str(case), {}).setdefault(str(method), {})[str(count)] = row
    return {"cases": cases, "honesty": _honesty(found)}


def of_strangers(found: Found) -> Section:
    """By kind of pools: what was found and what the estimate says; and the two ways to be wrong,
    over all.
    """
    kinds = {
        str(kind): {
            **_judged(many),
            "said_good": sum(cell["said_good"] for cell in many),
        }
        for (kind,), many in _groups(found, lambda key: key[1:2])
    }
    return {"kinds": kinds, "honesty": _honesty(found)}


def of_swapped(found: Found) -> Section:
    """By place: seeds that were wrong, reported as wrong, and reported although right; and the
    pairs.
    """
    places = {
        f"{place}, {count} seeds": {
            **_judged(many),
            **{name: sum(cell[name] for cell in many) for name in ("wrong", "named", "accused")},
        }
        for (place, count), many in _groups(found, lambda key: (key[1], key[3]))
    }
    return {"places": places}


def _honesty(found: Found) -> dict[str, dict[str, float]]:
    """By method: how often the estimate of a run was right, and the two ways to be wrong."""
    having = {key: cell for key, cell in found.items() if "said_good" in cell}
    told = {}
    for (method,), many in _groups(having, lambda key: (key[2],)):
        told[str(method)] = {
            "runs": len(many),
            "good": sum(counts.good(cell) for cell in many),
            "said_good": sum(cell["said_good"] for cell in many),
            "bad_called_good": sum(cell["said_good"] and not counts.good(cell) for cell in many),
            "good_called_bad": sum(counts.good(cell) and not cell["said_good"] for cell in many),
            "share_error": mean(
                abs(cell["said_share"] - cell["right"] / max(1, cell["pairs"])) for cell in many
            ),
        }
    return told


def _judged(many: list[Measured]) -> dict[str, float]:
    """Pairs, their estimate and the truth, over the draws."""
    return {
        "draws": len(many),
        **_means(many, "pairs", "said_share"),
        "share": mean(cell["right"] / max(1, cell["pairs"]) for cell in many),
        "good": sum(counts.good(cell) for cell in many),
    }


def _groups(found: Found, by: Callable[[Key], Key]) -> Iterable[tuple[Key, list[Measured]]]:
    groups: dict[Key, list[Measured]] = {}
    for key, cell in found.items():
        groups.setdefault(by(key), []).append(cell)
    return groups.items()


def _means(many: list[Measured], *names: str) -> dict[str, float]:
    """Means over the draws that have the number."""
    having = {name: [cell[name] for cell in many if cell.get(name) is not None] for name in names}
    return {name: mean(values) for name, values in having.items() if values}


def _spread(values: Iterable[float]) -> Mapping[str, float | None]:
    many = list(values)
    return {"mean": mean(many), "std": stdev(many) if len(many) > 1 else None}
