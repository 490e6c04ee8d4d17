"""The Python client: its tutorial in a fresh environment, and translations at home and by wire.

    python -m benchmarks.client

The tutorial is the code of `clients/python/README.md`, which runs against a server and a worker
with PostgreSQL (ANCHORAGE_TEST_POSTGRES) and Redis (ANCHORAGE_REDIS_URL), as `docker compose up`
starts them. The client is installed into a new virtual environment.

The second part compares `apply_locally` with requests for the same vectors, by JSON and by npy, in
one run, and says how far the results differ. The vectors are those of `anchorage demo`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import psycopg

from anchorage_client import Client, Translator
from app.demo.pack import ANCHOR_COUNT, load_pack
from benchmarks.common import RESULTS, machine, parser, significant, write
from benchmarks.service import serve

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "clients/python"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

POSTGRES = os.environ.get(
    "ANCHORAGE_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
)
REDIS = os.environ.get("ANCHORAGE_REDIS_URL", "redis://127.0.0.1:6379/0")

SOURCE, TARGET = "static-256", "minilm6-384"
METHODS = ("irp", "kernel")
BATCHES = (1, 64, 4_096)
SECONDS = 2.0


@contextmanager
def stack() -> Iterator[str]:
    """The address of a server whose jobs a worker runs."""
    database = f"anchorage_client_{uuid4().hex}"
    admin = POSTGRES.replace("+psycopg", "")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{database}"')
        settings = {
            "database_url": f"{POSTGRES.rpartition('/')[0]}/{database}",
            "redis_url": REDIS,
            "redis_prefix": database,
        }
        try:
            with tempfile.TemporaryDirectory() as folder, serve(**settings, data_dir=folder) as api:
                own = {f"ANCHORAGE_{name.upper()}": value for name, value in settings.items()}
                worker = subprocess.Popen(
                    [str(Path(sys.executable).with_name("anchorage")), "worker"],
                    env={**os.environ, **own, "ANCHORAGE_DATA_DIR": folder},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                try:
                    yield f"http://127.0.0.1:{api.port}"
                finally:
                    worker.terminate()
                    worker.wait()
        finally:
            connection.execute(f'DROP DATABASE "{database}" WITH (FORCE)')


def tutorial(address: str) -> dict[str, Any]:
    """Seconds of the tutorial's parts, and its number of lines."""
    code = "".join(BLOCK.findall((CLIENT / "README.md").read_text(encoding="utf-8")))
    code = code.replace("http://localhost:8080", address)
    pack = load_pack()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, encoder in (("old", SOURCE), ("new", TARGET)):
            (folder / side).mkdir()
            np.save(folder / side / "rows.npy", pack.vectors[encoder][:600].numpy())
        (folder / "tutorial.py").write_text(code)
        start = time.monotonic()
        venv.create(folder / "venv", with_pip=True)
        python = str(folder / "venv/bin/python")
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", f"{CLIENT}[progress,export]"], check=True
        )
        installed = time.monotonic()
        done = subprocess.run(
            [python, "tutorial.py"], cwd=folder, capture_output=True, text=True, check=True
        )
        ended = time.monotonic()
        packages = subprocess.run(
            [python, "-m", "pip", "list", "--format=freeze"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    print(done.stdout)
    return {
        "lines_of_code": sum(bool(line.strip()) for line in code.splitlines()),
        "packages": len(packages),
        "install_s": installed - start,
        "run_s": ended - installed,
    }


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


def report_lines(report: dict[str, Any]) -> list[str]:
    """The table of translations at home and by wire, as Markdown."""
    lines = [
        "| method | rows of a call | at home, rows/s | JSON, rows/s | npy, rows/s "
        "| home over npy | largest difference |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in report["at_home"]:
        rates = [row[f"{way}_rows_per_s"] for way in ("home", "json", "npy")]
        cells = " | ".join(f"{rate:,.0f}" for rate in rates)
        lines.append(
            f"| {row['method']} | {row['batch']:,} | {cells} | {rates[0] / rates[2]:.1f} "
            f"| {row['largest_deviation']:.0e} |"
        )
    return lines


def tutorial_line(report: dict[str, Any]) -> str:
    """How long the tutorial takes."""
    timed = report["tutorial"]
    return (
        f"{timed['lines_of_code']} lines of code; {timed['packages']} packages are installed in "
        f"{timed['install_s']:.0f} s, and the code runs in {timed['run_s']:.0f} s."
    )


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__, RESULTS / "client.json").parse_args()
    with stack() as address:
        report: dict[str, Any] = {"machine": machine(), "tutorial": tutorial(address)}
        report["at_home"] = at_home(address)
    report = significant(report)
    print(tutorial_line(report), *report_lines(report), sep="\n")
    write(arguments.json, report)


if __name__ == "__main__":
    main()
