"""Tables and results of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

import numpy as np

from benchmarks.common import Table

#: vectors of a large request
COUNT = 4_096
TARGETS = {
    "npy": "1.6",
    "base64": "4.0",
    "JSON": "1.2 of loads + product + dumps",
}
ONE = "one vector, JSON"


def spread(values: Sequence[float]) -> str:
    low, _, high = quantiles(values, n=4)
    return f"{low:.1f} to {high:.1f}"


def bulk_results(found: dict[str, list[Any]]) -> dict[str, Any]:
    """Medians of each format, and ratios to the bare product and to JSON's three steps."""
    product, here = median(found["product"]), median(found["JSON here"])
    results: dict[str, Any] = {
        "product_ms": round(product, 2),
        "json_here_ms": round(here, 2),
        "formats": {},
    }
    for name in ("npy", "npy, float16", "npy, bfloat16 product", "base64", "JSON"):
        trip, server = median(found[name]), median(found[f"{name}, server"])
        results["formats"][name] = {
            "round_trip_ms": round(trip, 2),
            "middle_half_ms": spread(found[name]),
            "ratio_to_product": round(trip / product, 3),
            "server_ms": round(server, 2),
            "server_ratio_to_product": round(server / product, 3),
            **({"ratio_to_json_here": round(trip / here, 3)} if name == "JSON" else {}),
        }
    return results


def bulk_table(results: dict[str, Any]) -> Table:
    """Each format's round trip, and the server's part of it."""
    columns = ["format", "round trip, ms", "middle half", "ratio to the product"]
    product = ["float32 product (torch, both cores)", f"{results['product_ms']:.1f}", "", "1.00"]
    table = [[*columns, "server, ratio to the product", "target"], [*product, "", ""]]
    for name, row in results["formats"].items():
        ratio = f"{row['ratio_to_product']:.2f}"
        if "ratio_to_json_here" in row:
            ratio += f" ({row['ratio_to_json_here']:.2f} of loads + product + dumps)"
        trip = [f"{row['round_trip_ms']:.1f}", row["middle_half_ms"], ratio]
        server = f"{row['server_ratio_to_product']:.2f}"
        table.append([name, *trip, server, TARGETS.get(name, "")])
    return table


def one_results(found: dict[str, list[float]]) -> dict[str, Any]:
    """Milliseconds of one vector and of the empty routes, and the ratios to these."""
    points = {name: np.percentile(values, [50, 99]) for name, values in found.items()}
    own = points[ONE]
    results: dict[str, Any] = {}
    for name, (p50, p99) in points.items():
        results[name] = {"p50_ms": round(float(p50), 4), "p99_ms": round(float(p99), 4)}
        if name != ONE:
            results[name] |= {
                "our_p50_ratio": round(float(own[0] / p50), 3),
                "our_p99_ratio": round(float(own[1] / p99), 3),
            }
    return results


def one_table(results: dict[str, Any]) -> Table:
    """One vector as JSON, compared with empty routes."""
    table = [["", "p50, ms", "p99, ms", "a translation's p50 is", "its p99 is"]]
    for name, row in results.items():
        ratios = [
            f"{row[key]:.2f} times that" if key in row else ""
            for key in ("our_p50_ratio", "our_p99_ratio")
        ]
        table.append([name, f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}", *ratios])
    return table
