"""From measured cells to the sections of the report: means and deviations over draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import mean, stdev
from typing import Any

from app.maths.bootstrap.estimate import seeds_to_add
from benchmarks.bootstrap import counts
from benchmarks.bootstrap.cells import Found, Measured
from benchmarks.bootstrap.store import Key

Section = dict[str, Any]


def of_rows(found: Found) -> Section:
    """Retrieval and stitching: by place, a row for each method, number of seeds and way to use its
    anchors.
    """
    places: dict[str, dict[str, Any]] = {}
    for (place, method, count), many in _groups(found, lambda key: key[1:4]):
        for name in dict.fromkeys(row for cell in many for row in cell["rows"]):
            having = [cell for cell in many if name in cell["rows"]]
            row: dict[str, Any] = {
                "method": method,
                "seeds": count,
                "read": name,
                "draws": len(having),
            }
            row |= _means(having, "pairs", "right", "grow_seconds")
            for way in having[0]["rows"][name]:
                first = having[0]["rows"][name][way]
                row[way] = {
                    figure: _spread(cell["rows"][name][way][figure] for cell in having)
                    for figure in first
                }
            places.setdefault(str(place), {})[f"{method}, {count}, {name}"] = row
    return {"places": places}


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
            # The share of each draw: a mean hides that a run either succeeds or fails.
            "shares": [cell["right"] / max(1, cell["pairs"]) for cell in many],
            **_means(many, "grow_seconds", "expected", "brier"),
        }
        if all("said_good" in cell for cell in many):
            row["said_good"] = sum(cell["said_good"] for cell in many)
            row["said_right"] = sum(cell["said_good"] == counts.good(cell) for cell in many)
        cases.setdefault(str(case), {}).setdefault(str(method), {})[str(count)] = row
    return {
        "cases": cases,
        "levels": _levels(found),
        "honesty": _honesty(found),
        "more": _more(found),
    }


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


def of_more_seeds(found: Found) -> Section:
    """By place: of the draws whose first seeds were refused, how many were good with ten more,
    suggested or random.
    """
    refused = {key: cell for key, cell in found.items() if cell["refused"]}
    places: dict[str, dict[str, Any]] = {}
    for (place, count, way), many in _groups(refused, lambda key: (key[1], key[3], key[2])):
        told = places.setdefault(f"{place}, {count} seeds", {"refused": len(many)})
        told[str(way)] = {"good": sum(counts.good(cell) for cell in many), **_means(many, "right")}
    return {"places": places}


def of_scale(found: Found) -> Section:
    """As measured: one run each."""
    return {"runs": {f"{method}, {size}": cell for (_, method, size), cell in found.items()}}


def of_kill(found: Found) -> Section:
    """As measured: one pair of runs."""
    return {"runs": {f"{case}, {count} seeds": cell for (_, case, count), cell in found.items()}}


def seconds(found: Found) -> dict[str, dict[str, float]]:
    """By method: how many cells there were, and their seconds of one core, each and in all."""
    method = {"scale": 1, "kill": 1}
    groups = _groups(found, lambda key: (key[method.get(str(key[0]), 2)],))
    return {
        str(name): {
            "cells": len(many),
            "each": mean(cell["seconds"] for cell in many),
            "all": sum(c["seconds"] for c in many),
        }
        for (name,), many in groups
    }


def _more(found: Found) -> dict[str, dict[str, int]]:
    """How often `more_seeds` is right: of the refused runs of self-learning, how many were good
    with that many more seeds.
    """
    told: dict[str, dict[str, int]] = {}
    for (section, case, method, count, number), cell in found.items():
        more = found.get((section, case, method, int(count) + seeds_to_add(int(count)), number))
        if method == "self-learning" and more is not None and not cell.get("said_good", True):
            entry = told.setdefault(str(count), {"refused": 0, "good_with_more": 0})
            entry["refused"] += 1
            entry["good_with_more"] += counts.good(more)
    return told


def _levels(found: Found) -> dict[str, dict[str, dict[str, float]]]:
    """By method and lower bound of the confidence: how many pairs, the share that is right, and the
    share that should be.
    """
    having = {key: cell for key, cell in found.items() if "levels" in cell}
    told: dict[str, dict[str, dict[str, float]]] = {}
    for (method,), many in _groups(having, lambda key: (key[2],)):
        for place, level in enumerate(counts.LEVELS):
            pairs, right, expected = (
                sum(cell["levels"][place][figure] for cell in many) for figure in range(3)
            )
            if pairs:
                told.setdefault(str(method), {})[str(level)] = {
                    "pairs": pairs,
                    "right": right / pairs,
                    "expected": expected / pairs,
                }
    return told


def _honesty(found: Found) -> dict[str, dict[str, float]]:
    """By method: how often the estimate of a run was right, and the two ways to be wrong."""
    having = {key: cell for key, cell in found.items() if "said_good" in cell}
    told = {}
    for (method,), many in _groups(having, lambda key: (key[2],)):
        told[str(method)] = {
            "runs": len(many),
            "good": sum(counts.good(cell) for cell in many),
            "said_good": sum(cell["said_good"] for cell in many),
            "right": mean(float(cell["said_good"] == counts.good(cell)) for cell in many),
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
