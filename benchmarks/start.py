"""How soon does `anchorage serve` answer, and how much memory does it take?

    python -m benchmarks.start  # two minutes on 2 quiet cores

Writes benchmarks/results/start.json.

`serve` starts with SQLite in an empty folder and without Redis. A start lasts from the command to
the first answer of /stores, with compiled modules, as every start but the first has them. Then it
registers all-MiniLM-L6-v2. The floor is a Python that only imports torch. Memory is the resident
set of all processes; for each number, the median of the rounds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

import orjson
from rich.console import Console

from benchmarks.common import RESULTS, parser, show, write
from benchmarks.faults.resources import resident, tree
from benchmarks.service import JSON, Connection
from scripts.servers import serve

#: waits, so that its memory can be read
TORCH = "import torch; print(flush=True); input()"
MINILM = {"name": "new", "kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
ROWS = ("Python that imports torch", "`serve`, without a model", "registration of MiniLM")


def measured(begun: float, pid: int) -> tuple[float, float]:
    """The seconds since `begun`, and the MiB of a process and its descendants."""
    return time.perf_counter() - begun, sum(map(resident, tree(pid))) / 2**20


def of_torch() -> tuple[float, float]:
    """A Python that only imports torch."""
    begun, command = time.perf_counter(), [sys.executable, "-c", TORCH]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as python:
        assert python.stdout is not None
        python.stdout.readline()
        found = measured(begun, python.pid)
        python.kill()
    return found


def of_service() -> tuple[tuple[float, float], tuple[float, float]]:
    """A start of the service, and the registration of a model."""
    begun = time.perf_counter()
    with serve() as server:
        service = Connection(server.port)
        for path in ("/livez", "/stores"):
            service.ask(path, b"", verb="GET")
        start, begun = measured(begun, server.process.pid), time.perf_counter()
        service.ask("/encoders", orjson.dumps(MINILM), JSON)
        return start, measured(begun, server.process.pid)


def main() -> None:
    """Measure, show and write."""
    arguments = parser(__doc__, RESULTS / "start.json")
    arguments.add_argument("--rounds", type=int, default=5)
    options = arguments.parse_args()
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""  # the first round compiles, and does not count
    rounds = [(of_torch(), *of_service()) for _ in range(options.rounds + 1)][1:]
    table = [["", "seconds", "MiB"]]
    for what, found in zip(ROWS, zip(*rounds, strict=True), strict=True):
        took, size = (median(each) for each in zip(*found, strict=True))
        table.append([what, f"{took:.1f}", f"{size:.0f}"])
    tables = {"start": table}
    show(Console(width=100), tables)
    write(options.json, tables, {"start": rounds})


if __name__ == "__main__":
    main()
