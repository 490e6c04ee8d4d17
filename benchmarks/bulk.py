"""How fast does `anchorage translate` translate Parquet files, compared with reading, multiplying
and writing the same rows alone? Does its memory stay flat?

    python -m benchmarks.bulk --gigabytes 5

Writes benchmarks/results/bulk.json. Needs three times the gigabytes on the disk of --folder.

The input has an id, a sentence and a vector of 384 float32 numbers in each row. The vectors are the
2,310 real embeddings of the demo by all-MiniLM-L6-v2, repeated with noise of a tenth of their
length: real numbers for the codec and the product, but no corpus. The demo's 500 anchors lead to
the first 384 of the 512 numbers of its second encoder.

Alone: one thread does only one stage on the first rows of the input, with the same batches as the
command: it reads batches, translates batches in memory, and writes translated batches. These run
before and after the command, and the faster of both counts. "The sum" is the time of a program that
does one stage after the other in one thread. "CPU": processor time instead, which other programs on
the machine change less.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from rich.console import Console

from app.demo.pack import load_pack
from app.services.anchors import anchor_sets
from app.services.bulk.pipeline import BulkWork
from app.services.bulk.places import open_place
from app.services.bulk.row_translator import read_translator
from app.services.bulk.shard_files import ShardWriter, form_of, read_batches, translate_batch
from app.services.bulk.shards import cut, open_parquet
from app.services.bulk.translation import default_batch_rows
from app.services.encoders import encoders
from app.services.request_context import RequestContext
from app.services.serving.apply import Translation, prepare_map
from app.services.translators.translators import FitRequest, read_file
from app.settings import Settings
from app.types import EncoderKind
from app.wiring import make_services
from benchmarks.common import RESULTS, Table, parser, show, write

SOURCE, TARGET, ANCHORS = "minilm6-384", "minilm3-512", "demo"
DIM = 384
GIGABYTE = 10**9
#: bytes of an input file, and rows of its row groups
FILE_BYTES, GROUP_ROWS = GIGABYTE // 2, 65_536
#: batches of each stage alone
ALONE_BATCHES = 24
RSS_EVERY_S = 0.25

console = Console(width=130)


def main() -> None:
    """Make the input, measure, print and write."""
    arguments = parser(__doc__, RESULTS / "bulk.json")
    arguments.add_argument("--gigabytes", type=float, default=0.25, help="of vectors (default .25)")
    arguments.add_argument("--folder", type=Path, help="where to work; it is deleted afterwards")
    options = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="anchorage-bulk-", dir=options.folder))
    try:
        report = measure(folder, options.gigabytes)
    finally:
        shutil.rmtree(folder)
    tables = {"found": table(report)}
    show(console, tables)
    write(options.json, tables, report)


def measure(folder: Path, gigabytes: float) -> dict[str, Any]:
    """Measure everything in `folder`."""
    work = prepare(folder)
    rows = make_input(folder / "in", gigabytes)
    before = stages_alone(work, folder)
    whole = run_command(folder, "out")
    after = stages_alone(work, folder)
    alone = {name: faster(before[name], after[name]) for name in before}
    report: dict[str, Any] = {
        "input": {
            "rows": rows,
            "dim": DIM,
            "vector_bytes": rows * DIM * 4,
            "file_bytes": sum(path.stat().st_size for path in (folder / "in").iterdir()),
            "batch_rows": work.batch_rows,
        },
        "alone": alone,
        "command": whole,
        "share": shares(alone, whole, rows),
    }
    return report


def prepare(folder: Path) -> BulkWork:
    """Create the pair in a data dir, and return its translator."""
    pack = load_pack()
    services = make_services(Settings(data_dir=folder / "data"))
    services.db.upgrade()
    context = RequestContext()
    for name in (SOURCE, TARGET):
        encoders.create_encoder(services, context, name=name, kind=EncoderKind.external, dim=DIM)
    embeddings = {name: pack.vectors[name][pack.anchors, :DIM] for name in (SOURCE, TARGET)}
    anchor_sets.create_anchor_set(services, context, name=ANCHORS, embeddings=embeddings)
    request = FitRequest(SOURCE, TARGET, ANCHORS, "auto", {})
    served = prepare_map(services, context, Translation(request))
    data = read_file(services, context, str(served.id))
    translator = read_translator(data, served.options or {})
    services.close()
    return BulkWork(translator, None, default_batch_rows(translator.dims))


def make_input(folder: Path, gigabytes: float) -> int:
    """Write the input files, and return their rows."""
    pack = load_pack()
    real = pack.vectors[SOURCE].numpy()
    draw = np.random.default_rng(0)
    folder.mkdir()
    rows_left = rows = int(gigabytes * GIGABYTE / (4 * DIM))
    schema = pa.schema(
        {"id": pa.int64(), "text": pa.string(), "vector": pa.list_(pa.float32(), DIM)}
    )
    number = 0
    while rows_left > 0:
        in_file = min(rows_left, FILE_BYTES // (4 * DIM))
        options = {"use_dictionary": ["id", "text"], "compression": "snappy"}
        with parquet.ParquetWriter(folder / f"{number:03d}.parquet", schema, **options) as writer:
            for start in range(0, in_file, GROUP_ROWS):
                count = min(GROUP_ROWS, in_file - start)
                places = np.arange(rows - rows_left + start, rows - rows_left + start + count)
                noise = draw.standard_normal((count, DIM), dtype=np.float32)
                vectors = real[places % len(real)] + noise * np.float32(0.1 / DIM**0.5)
                texts = [f"{pack.sentences[place % len(real)]} ({place})" for place in places]
                flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
                columns = [pa.array(places), pa.array(texts), flat]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        rows_left -= in_file
        number += 1
    return rows


def stages_alone(work: BulkWork, folder: Path) -> dict[str, dict[str, float]]:
    """Seconds and CPU seconds for each row of each stage, in one thread."""
    torch.set_num_threads(1)
    first = open_place(str(sorted((folder / "in").iterdir())[0]))
    (shard, *_) = cut([(first, "x.parquet")], whole=True)
    with open_parquet(first) as file:
        form = form_of(file, first.path, work.translator, None)
        source = read_batches(file, first, shard, work.batch_rows)
        with timed() as reading:
            batches = [batch for batch, _ in islice(source, ALONE_BATCHES)]
    rows = sum(batch.num_rows for batch in batches)
    with timed() as multiplying:
        tables = [translate_batch(work.translator, form, each, "x", 0)[0] for each in batches]
    output = open_place(str(folder / "alone.parquet"))
    with timed() as writing, ShardWriter(output, form) as writer:
        for table in tables:
            writer.write(table)
        writer.finish(0, "")
    output.delete()
    stages = {"read": reading, "multiply": multiplying, "write": writing}
    return {
        name: {each: value / rows for each, value in times.items()}
        for name, times in stages.items()
    }


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Seconds and CPU seconds of the block."""
    times: dict[str, float] = {}
    wall, cpu = time.perf_counter(), time.process_time()
    yield times
    times["s"], times["cpu_s"] = time.perf_counter() - wall, time.process_time() - cpu


def faster(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {name: min(one[name], other[name]) for name in one}


def command(folder: Path, output: str) -> subprocess.Popen[bytes]:
    """Start `anchorage translate`."""
    call = [sys.executable, "-m", "app.cli", "translate", str(folder / "in"), str(folder / output)]
    call += ["--source", SOURCE, "--target", TARGET, "--anchor-set", ANCHORS]
    environment = {**os.environ, "ANCHORAGE_DATA_DIR": str(folder / "data")}
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(call, env=environment, stdout=log, stderr=log)


def run_command(folder: Path, output: str) -> dict[str, Any]:
    """Run the command to its end: seconds with and without its start, CPU, memory over time."""
    with timed() as times:
        process = command(folder, output)
        memory = follow(process, folder / output)
    if process.returncode:
        raise RuntimeError((folder / "log.txt").read_text())
    begun = next(sample.s for sample in memory if sample.began)
    working = [sample.rss_bytes for sample in memory if sample.began]
    cpu_at_start = next(sample.cpu_s for sample in memory if sample.began)
    quarter = max(1, len(working) // 4)
    return {
        "s": times["s"],
        "start_s": begun,
        "cpu_s": memory[-1].cpu_s - cpu_at_start,
        "rss_peak_bytes": max(working),
        "rss_by_quarter_bytes": [
            max(working[start : start + quarter])
            for start in range(0, 4 * quarter, quarter)
            if working[start : start + quarter]
        ],
    }


@dataclass(frozen=True)
class Sample:
    """A process at one moment. began: its output exists."""

    s: float
    rss_bytes: int
    cpu_s: float
    began: bool


def follow(process: subprocess.Popen[bytes], output: Path) -> list[Sample]:
    """The process four times a second, until it ends."""
    found: list[Sample] = []
    begun = time.perf_counter()
    while process.poll() is None:
        if (resident := rss(process.pid)) > 0:
            seconds = time.perf_counter() - begun
            found.append(Sample(seconds, resident, cpu(process.pid), output.exists()))
        time.sleep(RSS_EVERY_S)
    return found


def rss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = [line for line in text.splitlines() if line.startswith("VmRSS:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0


def cpu(pid: int) -> float:
    """Seconds of processor time of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shares(alone: dict[str, Any], whole: dict[str, Any], rows: int) -> dict[str, float]:
    """The command's speed relative to the stages alone."""
    working = whole["s"] - whole["start_s"]
    times = [stage["s"] * rows for stage in alone.values()]
    return {
        "rows_per_s": rows / working,
        "of_the_sum": sum(times) / working,
        "of_the_sum_with_start": sum(times) / whole["s"],
        "of_both_cores": sum(times) / 2 / working,
        "cpu": sum(stage["cpu_s"] * rows for stage in alone.values()) / whole["cpu_s"],
    }


def table(report: dict[str, Any]) -> Table:
    """The table of docs/results/speed.md."""
    share, whole = report["share"], report["command"]
    million = whole["cpu_s"] / report["input"]["rows"] * 1e6
    memory = [f"{peak / 1e6:,.0f}" for peak in whole["rss_by_quarter_bytes"]]
    return [
        ["", "found"],
        [
            "rows/s, once the command has started and fitted its translator",
            f"{share['rows_per_s']:,.0f}",
        ],
        [
            "of a program that reads, multiplies and writes one after the other in one thread",
            f"{share['of_the_sum']:.0%}".replace("%", " %"),
        ],
        [
            "the same with the start of the command and the fit of the translator",
            f"{share['of_the_sum_with_start']:.0%}".replace("%", " %"),
        ],
        [
            "of the three stages perfectly spread over both cores",
            f"{share['of_both_cores']:.0%}".replace("%", " %"),
        ],
        [
            "processor time of the three stages, of that of the command",
            f"{share['cpu']:.0%}".replace("%", " %"),
        ],
        ["processor time for a million rows", f"{million:.1f} s"],
        [
            "most memory of the process, in each quarter of the run",
            f"{', '.join(memory[:-1])} and {memory[-1]} MB",
        ],
    ]


if __name__ == "__main__":
    main()
