"""How does cost grow, and what does a translation cost compared with what it replaces?

    python -m benchmarks.scaling                  # everything, about 8 minutes on 2 cores
    python -m benchmarks.scaling --only fused n   # some sections; the results of the others stay
    python -m benchmarks.scaling --quick          # smaller and fewer; writes scaling-quick.json

Writes benchmarks/results/scaling.json and scaling.png.

fused        one matrix, compared with the eight projections and products of the paper
fit          irp, graded, procrustes, ridge with a search of lambda; and a fitted translator that
             another process reads from Redis
reembedding  translated vectors, compared with the same sentences encoded anew
n, k, d      more vectors (to a million, streamed, with the server's memory), more anchors, more
             dimensions
clients      more clients, compared with an empty route

Real server processes (`anchorage serve`) over loopback, client and server on one machine.
Everything that is compared takes its turn in every round of one run. The tables show medians of the
rounds and their middle half. Slopes are of logarithms.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.common import RESULTS, machine, merged, parser, read
from benchmarks.common import write as write_report
from benchmarks.scaling import clients, fitting, fused, growth, reembedding
from benchmarks.scaling.figures import Section, draw, shown

SECTIONS = ("fused", "fit", "reembedding", "n", "k", "d", "clients")


def main() -> None:
    """Measure the chosen sections; print and write each as it is done."""
    arguments = parser(__doc__, RESULTS / "scaling.json")
    arguments.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="measure only these sections"
    )
    arguments.add_argument(
        "--quick", action="store_true", help="smaller and fewer; writes scaling-quick.json"
    )
    arguments.add_argument(
        "--redis",
        default="redis://127.0.0.1:6379/0",
        help="where `fit` stores a translator, under its own prefix",
    )
    options = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the servers end, too
    path = Path("scaling-quick.json") if options.quick else options.json
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
            write(path, name, section, seconds, quick=options.quick)
    console.print(f"Written to {path} and {path.with_suffix('.png')}")


def show(console: Console, name: str, section: Section, seconds: int) -> None:
    for grid in section.grids:
        console.print(grid.printed())
    for what, slope in section.slopes.items():
        console.print(f"slope of {what}: {slope:.2f}", highlight=False)
    for target in section.targets:
        console.print(str(target), style=None if target.met else "red", highlight=False)
    console.print(f"{section.note}\n{name}: {shown(seconds)} s.\n", highlight=False)


def write(path: Path, name: str, section: Section, seconds: int, *, quick: bool) -> None:
    """Write one section into the report, where the other sections stay, and draw them all."""
    new = {**section.as_json(), "seconds": seconds, "quick": quick}
    write_report(
        path,
        {
            "machine": machine(),
            "sections": merged(read(path).get("sections", {}), name, new, SECTIONS),
        },
    )
    draw(read(path)["sections"], path.with_suffix(".png"))


if __name__ == "__main__":
    main()
