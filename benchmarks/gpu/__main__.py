"""What is a GPU worth to the service, and more than two cores?

    python -m benchmarks.gpu                         # all rows, on the CPU without a GPU
    python -m benchmarks.gpu --only apply images     # some rows; the others stay in the report
    python -m benchmarks.gpu --device cpu            # the CPU rows on a machine with a GPU
    python -m benchmarks.gpu --rival tei=http://127.0.0.1:8081/v1
    python -m benchmarks.gpu.page                    # write the tables of docs/results/gpu.md

Writes benchmarks/results/gpu.json, by device. Each row says what it compares with; sizes depend on
the device. About 6 minutes on 2 cores, and about 25 on a GPU with 16 cores. It needs the `text` and
`vision` extras; redis-server, initdb and pg_ctl for the rows with several processes. What a row
lacks it prints, and the others run all the same.

A rival is an endpoint of OpenAI's protocol that serves all-MiniLM-L6-v2 as `minilm`, such as
text-embeddings-inference or infinity-emb on the same GPU. With --infinity the script starts
infinity-emb itself: pip install torch "infinity-emb[server,torch]" into another environment.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path
from types import ModuleType

from rich.console import Console

from benchmarks.common import RESULTS, Missing, merged, parser, read, significant, write
from benchmarks.faults.deployment import end_on_sigterm
from benchmarks.gpu import embeddings, images, learning, methods, processes, products
from benchmarks.gpu.device import choose
from benchmarks.gpu.run import Run

ROWS: dict[str, ModuleType] = {
    row.NAME: row for row in (methods, products, embeddings, processes, learning, images)
}

console = Console(width=170)


def main() -> None:
    """Measure, print and write the chosen rows."""
    arguments = _arguments()
    end_on_sigterm()
    logging.disable(logging.WARNING)
    device = choose(arguments.device)
    console.print(f"{device.name}: {device.about()}", highlight=False)
    with tempfile.TemporaryDirectory(prefix="anchorage-gpu-") as name:
        folder = arguments.models or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        run = Run(device, folder, dict(arguments.rival), arguments.infinity, arguments.real)
        for row in arguments.only or ROWS:
            started = time.perf_counter()
            try:
                found = ROWS[row].measure(run)
            except Missing as error:
                console.print(f"[red]{row} is left out.[/red] {error}", highlight=False)
                continue
            found["took_s"] = time.perf_counter() - started
            if arguments.note:
                found["note"] = arguments.note
            for table in ROWS[row].tables(found):
                console.print(table.printed())
            for what, why in found.get("left_out", {}).items():
                console.print(f"[red]{what} is left out.[/red] {why}", highlight=False)
            _add(arguments.json, device.name, row, found, run)
    console.print(f"Written to {arguments.json}")


def _add(path: Path, device: str, row: str, found: dict[str, object], run: Run) -> None:
    """Replace one row of one device in the report."""
    report = read(path)
    rows = report.get(device, {}).get("rows", {})
    of_device = {
        "machine": run.device.about(),
        "rows": merged(rows, row, significant(found), list(ROWS)),
    }
    write(path, merged(report, device, of_device, ["cpu", "cuda"]))


def _arguments() -> argparse.Namespace:
    made = parser(__doc__, RESULTS / "gpu.json")
    made.add_argument("--only", nargs="+", choices=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    made.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    made.add_argument(
        "--rival",
        action="append",
        type=_named_url,
        default=[],
        metavar="NAME=URL",
        help="an endpoint to measure too: the URL before /embeddings",
    )
    made.add_argument("--infinity", metavar="PATH", help="the command infinity_emb")
    made.add_argument("--real", action="store_true", help="learn from real sentences")
    made.add_argument("--note", metavar="TEXT", help="a sentence below these rows on the page")
    made.add_argument(
        "--models", type=Path, metavar="PATH", help="where to keep the models that it makes"
    )
    return made.parse_args()


def _named_url(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals or not url.startswith("http://"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=http://HOST:PORT/PATH")
    return name, url


if __name__ == "__main__":
    main()
