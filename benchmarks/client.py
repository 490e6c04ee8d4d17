"""Translations by the Python client at home and by wire.

    python -m benchmarks.client

Compares `apply_locally` with requests for the same vectors, by JSON and by npy, in one run, and
says how far the results differ. The vectors are those of `anchorage demo`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console

from anchorage_client import Client, Translator
from app.demo.pack import ANCHOR_COUNT, load_pack
from benchmarks.common import RESULTS, Table, parser, show, write
from scripts.servers import serve

SOURCE, TARGET = "static-256", "minilm6-384"
METHODS = ("irp", "kernel")
BATCHES = (1, 64, 4_096)
SECONDS = 2.0


def rate(call: Callable[[], object], rows: int) -> float:
    """Rows in a second, of calls one after another."""
    call()
    start, calls = time.monotonic(), 0
    while time.monotonic() - start < SECONDS:
        call()
        calls += 1
    return rows * calls / (time.monotonic() - start)


def at_home(address: str) -> list[dict[str, Any]]:
    """How many rows a second are translated at home and by wire, and how far they differ."""
    pack = load_pack()
    found: list[dict[str, Any]] = []
    with Client(address) as client:
        rows = {name: pack.vectors[name].numpy() for name in (SOURCE, TARGET)}
        for name, vectors in rows.items():
            client.encoders.create(name, dim=vectors.shape[1])
        anchors = {name: vectors[:ANCHOR_COUNT] for name, vectors in rows.items()}
        client.anchor_sets.create("demo", embeddings=anchors)
        names: dict[str, Any] = {"source": SOURCE, "target": TARGET, "anchor_set": "demo"}
        for method in METHODS:
            translator = client.translator(**names, method=method)
            found += [
                {"method": method, **compared(client, translator, names, rows[SOURCE], batch)}
                for batch in BATCHES
            ]
    return found


def compared(
    client: Client, translator: Translator, names: dict[str, Any], rows: Any, batch: int
) -> dict[str, Any]:
    """One batch, translated at home, by JSON and by npy."""
    vectors = np.resize(rows[ANCHOR_COUNT:], (batch, rows.shape[1]))
    fields = {**names, "method": translator.method}
    served = client.translate(vectors, **fields).vectors
    here = translator.apply_locally(vectors)
    far = np.linalg.norm(here - served, axis=1) / np.linalg.norm(served, axis=1)
    return {
        "batch": batch,
        "home_rows_per_s": rate(lambda: translator.apply_locally(vectors), batch),
        "json_rows_per_s": rate(lambda: client.translate(vectors, **fields), batch),
        "npy_rows_per_s": rate(lambda: list(client.translate_stream(vectors, **fields)), batch),
        "largest_deviation": float(far.max()),
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """Translations at home and by wire."""
    ways = ["at home, rows/s", "JSON, rows/s", "npy, rows/s"]
    found = [["method", "rows of a call", *ways, "home over npy", "largest difference"]]
    for row in rows:
        rates = [row[f"{way}_rows_per_s"] for way in ("home", "json", "npy")]
        cells = [row["method"], f"{row['batch']:,}", *(f"{rate:,.0f}" for rate in rates)]
        found.append([*cells, f"{rates[0] / rates[2]:.1f}", f"{row['largest_deviation']:.0e}"])
    return found


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__, RESULTS / "client.json").parse_args()
    with serve() as server:
        rows = at_home(f"http://127.0.0.1:{server.port}")
    tables = {"methods": table(rows)}
    show(Console(width=140), tables)
    write(arguments.json, tables, {"at_home": rows})


if __name__ == "__main__":
    main()
