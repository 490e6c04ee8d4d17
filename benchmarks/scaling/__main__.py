"""How does cost grow, and what does a translation cost beside what it replaces?

    python benchmarks/scaling.py                  # everything, about 8 minutes on 2 cores; writes results/scaling.json and .png
    python benchmarks/scaling.py --only fused n   # some sections; the others' results stay in the JSON
    python benchmarks/scaling.py --quick          # smaller and fewer, to try it out; writes below the temporary folder

fused        one matrix, beside the paper's eight projections and products
fit          irp, graded, procrustes, ridge with a search of lambda; and a fitted translator from Redis by another process
reembedding  vectors translated, beside the same sentences encoded anew
n, k, d      more vectors (to a million, streamed, with the server's memory), more anchors, more dimensions
clients      more clients, beside an empty route

Real server processes (`anchorage serve`) over loopback, client and server on one machine. Everything that is compared takes its
turn in every round of one run; shown are medians of the rounds, and the middle half of them. Slopes are of logarithms.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.scaling import clients, fitting, fused, growth, reembedding
from benchmarks.scaling.figures import Section, draw, shown

RESULTS = Path(__file__).parents[1] / "results"
SECTIONS = ("fused", "fit", "reembedding", "n", "k", "d", "clients")


def main() -> None:
    """Measure the chosen sections; print and write each as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="these sections")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer")
    parser.add_argument(
        "--redis", default="redis://127.0.0.1:6379/0", help="where `fit` keeps a translator, under a prefix of its own"
    )
    parser.add_argument("--out", type=Path, help="folder of scaling.json and scaling.png")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that servers are ended
    folder = options.out or (Path(tempfile.gettempdir()) / "anchorage-scaling" if options.quick else RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    measures: dict[str, Callable[[bool], Section]] = {
        "fused": fused.measure,
        "fit": partial(fitting.measure, redis_url=options.redis),
        "reembedding": reembedding.measure,
        "n": growth.in_vectors,
        "k": growth.in_anchors,
        "d": growth.in_dimensions,
        "clients": clients.measure,
    }
    console = Console(width=max(180, Console().width))
    for name in SECTIONS:
        if name in options.only:
            began = time.monotonic()
            section = measures[name](options.quick)
            seconds = round(time.monotonic() - began)
            show(console, name, section, seconds)
            write(folder, name, section, seconds, quick=options.quick)
    console.print(f"written to {folder / 'scaling.json'} and {folder / 'scaling.png'}")


def show(console: Console, name: str, section: Section, seconds: int) -> None:
    for grid in section.grids:
        console.print(grid.printed())
    for what, slope in section.slopes.items():
        console.print(f"slope of {what}: {slope:.2f}", highlight=False)
    for target in section.targets:
        console.print(str(target), style=None if target.met else "red", highlight=False)
    console.print(f"{section.note}\n{name}: {shown(seconds)} s.\n", highlight=False)


def write(folder: Path, name: str, section: Section, seconds: int, *, quick: bool) -> None:
    """Put one section into the JSON, beside the others that are there, and draw them all."""
    path = folder / "scaling.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    sections = report.get("sections", {}) | {name: {**section.as_json(), "seconds": seconds, "quick": quick}}
    report = {
        "machine": {"cores": os.cpu_count(), "processor": platform.processor() or platform.machine(), "torch": torch.__version__},
        "sections": {key: sections[key] for key in SECTIONS if key in sections},
    }
    path.write_text(json.dumps(report, indent=1) + "\n")
    draw(json.loads(path.read_text())["sections"], path.with_suffix(".png"))


if __name__ == "__main__":
    main()
