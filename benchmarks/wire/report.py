"""Tables, results and the picture of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from benchmarks.wire.bodies import DIM

#: vectors of a large request
COUNT = 4_096


def spread(values: Sequence[float]) -> str:
    low, _, high = quantiles(values, n=4)
    return f"{low:.1f} to {high:.1f}"


def bulk_table(found: dict[str, list[Any]]) -> tuple[Table, dict[str, Any]]:
    table = Table(
        title=f"{COUNT:,} vectors, {DIM} -> {DIM}: milliseconds, and times the bare product",
        title_justify="left",
    )
    for column in (
        "",
        "round trip",
        "middle half",
        "x product",
        "server",
        "x product",
        "x JSON here",
        "target",
    ):
        table.add_column(column, justify="left" if not column else "right")
    product = median(found["product"])
    targets = {"npy": "1.6", "Arrow": "1.5", "base64": "4.0", "JSON": "1.2 x JSON here"}
    table.add_row("bare product, here", f"{product:.1f}", spread(found["product"]), "1.00")
    table.add_row(
        "JSON here: loads + product + dumps",
        f"{median(found['JSON here']):.1f}",
        spread(found["JSON here"]),
    )
    results: dict[str, Any] = {
        "product_ms": round(product, 2),
        "json_here_ms": round(median(found["JSON here"]), 2),
        "formats": {},
    }
    for name in ("npy", "Arrow", "npy, float16", "npy, bfloat16 product", "base64", "JSON"):
        trip, server = median(found[name]), median(found[f"{name}, server"])
        beside = trip / median(found["JSON here"])
        table.add_row(
            name,
            f"{trip:.1f}",
            spread(found[name]),
            f"{trip / product:.2f}",
            f"{server:.1f}",
            f"{server / product:.2f}",
            f"{beside:.2f}" if name == "JSON" else "",
            targets.get(name, ""),
        )
        results["formats"][name] = {
            "round_trip_ms": round(trip, 2),
            "middle_half_ms": spread(found[name]),
            "ratio_to_product": round(trip / product, 3),
            "server_ms": round(server, 2),
            "server_ratio_to_product": round(server / product, 3),
            **({"ratio_to_json_here": round(beside, 3)} if name == "JSON" else {}),
        }
    return table, results


def one_table(found: dict[str, list[float]]) -> tuple[Table, dict[str, Any]]:
    table = Table(
        title=f"One vector of {DIM}, JSON in and out: milliseconds of the round trip",
        title_justify="left",
    )
    for column in ("", "p50", "p99", "its p50 x", "its p99 x"):
        table.add_column(column, justify="left" if not column else "right")
    points = {name: np.percentile(values, [50, 99]) for name, values in found.items()}
    own = points["one vector, JSON"]
    results = {}
    for name, (p50, p99) in points.items():
        ratios = (
            ("", "")
            if name == "one vector, JSON"
            else (f"{own[0] / p50:.2f}", f"{own[1] / p99:.2f}")
        )
        table.add_row(name, f"{p50:.3f}", f"{p99:.3f}", *ratios)
        results[name] = {"p50_ms": round(float(p50), 4), "p99_ms": round(float(p99), 4)}
        if name != "one vector, JSON":
            results[name] |= {
                "our_p50_ratio": round(float(own[0] / p50), 3),
                "our_p99_ratio": round(float(own[1] / p99), 3),
            }
    table.caption = "target: p50 at most 2.2 times an empty route that declares its body"
    return table, results


def plot(bulk: dict[str, Any], path: Path) -> None:
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    names = list(bulk["formats"])
    trips = [bulk["formats"][name]["ratio_to_product"] for name in names]
    own = [bulk["formats"][name]["server_ratio_to_product"] for name in names]
    axes.barh(names, trips, color="#9ecae1", label="round trip")
    axes.barh(
        names, own, height=0.4, color="#3182bd", label="of it the server, once the body is there"
    )
    axes.axvline(1, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel(f"times the bare product of {COUNT:,} x {DIM} by {DIM} x {DIM}")
    axes.legend()
    figure.savefig(path, dpi=110)
