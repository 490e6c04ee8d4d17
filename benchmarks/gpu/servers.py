"""Real servers and the Redis and PostgreSQL they need, and loads from client processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.faults.deployment import RedisServer
from benchmarks.faults.postgres import Postgres
from benchmarks.gpu.run import Run
from benchmarks.service import started

#: most seconds of one load, and of the start of all processes
LOAD_S, READY_S = 570, 240
READY_LINE = "Application startup complete"

#: ANCHORAGE_ variables of one server, by its name
MakeSettings = Callable[[str], dict[str, str]]


@dataclass(frozen=True)
class Target:
    """Where a load goes.

    base  path before that of each request
    ours  whether it is the service, which has metrics
    """

    host: str
    port: int
    base: str = ""
    ours: bool = True

    def request(self, path: str, body: bytes, media: str = "application/json") -> bytes:
        """The bytes of one POST."""
        head = (
            f"POST {self.base}{path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Content-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://{self.host}:{self.port}{self.base}"


@dataclass(frozen=True)
class Loaded:
    """What one load measured.

    seconds      from the first request to the last answer
    client_cores processor time of all clients, in cores
    """

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    client_cores: float

    @property
    def per_s(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds


@contextmanager
def backing(run: Run) -> Iterator[MakeSettings]:
    """A Redis and a PostgreSQL; each server has its own database and keys. Raises Missing."""
    with tempfile.TemporaryDirectory(dir=run.folder) as name, ExitStack() as ending:
        folder = Path(name)
        for each in (run.folder, folder):
            each.chmod(0o711)  # PostgreSQL's user must reach its own folder below
        redis = RedisServer(folder)
        postgres = Postgres(folder, options="-c max_connections=500")
        ending.callback(redis.kill)
        redis.start()
        redis.wait_ready()
        postgres.create()
        ending.callback(postgres.stop)

        def settings(server: str) -> dict[str, str]:
            database = server.replace("-", "_")
            postgres.execute(f"CREATE DATABASE {database}")
            return {
                "ANCHORAGE_REDIS_URL": redis.url,
                "ANCHORAGE_REDIS_PREFIX": server,
                "ANCHORAGE_DATABASE_URL": postgres.url.rpartition("/")[0] + f"/{database}",
            }

        yield settings


@contextmanager
def serve(
    run: Run, name: str, settings: Mapping[str, str], *, processes: int = 1
) -> Iterator[Target]:
    """`anchorage serve` with that many processes, once all of them answer."""
    with tempfile.TemporaryDirectory(dir=run.folder, prefix=f"{name}-") as place:
        folder = Path(place)
        command = [str(Path(sys.executable).with_name("anchorage")), "serve"]
        environment = {
            "ANCHORAGE_DATA_DIR": str(folder / "data"),
            "ANCHORAGE_MODELS_DIR": str(run.folder),
            "ANCHORAGE_MODEL_BYTES": str(8 * 2**30),
            "ANCHORAGE_MAX_IN_FLIGHT": "1024",
            "ANCHORAGE_MAX_IN_FLIGHT_BYTES": str(4 * 2**30),
            "ANCHORAGE_LOG_FORMAT": "json",
            "ANCHORAGE_WORKERS": str(processes),
            **run.device.environment,
            **settings,
        }
        with started(command, environment, folder) as server:
            deadline = time.monotonic() + READY_S
            while (folder / "log").read_text(errors="replace").count(READY_LINE) < processes:
                if time.monotonic() > deadline or server.process.poll() is not None:
                    raise RuntimeError(f"{name} did not start:\n{tail(folder / 'log')}")
                time.sleep(0.1)
            yield Target("127.0.0.1", server.port)


def tail(log: Path) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def post(target: Target, path: str, body: object) -> dict[str, object]:
    """The answer to one request that is not measured."""
    answer = httpx2.post(f"{target.url}{path}", json=body, timeout=600, trust_env=False)
    if answer.is_error:
        raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:500]}")
    return dict(answer.json())


def metrics(target: Target) -> dict[str, float]:
    """Every number of the service's own metrics, summed over its labels except the route."""
    answer = httpx2.get(f"{target.url}/metrics", timeout=60, trust_env=False)
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.raise_for_status().text):
        for sample in family.samples:
            labels = sample.labels
            if "le" in labels:
                continue
            name = " ".join([sample.name, *filter(None, [labels.get("route"), labels.get("kind")])])
            found[name] = found.get(name, 0.0) + sample.value
    return found


def client_processes() -> int:
    """A quarter of the cores: the servers need the others."""
    return max(1, (os.cpu_count() or 1) // 4)


def load(target: Target, requests: Sequence[bytes], *, clients: int, processes: int = 1) -> Loaded:
    """Send all requests: each client sends its next one as soon as it has an answer.

    The clients are divided among that many processes. Raises RuntimeError if an answer is not 200.
    """
    running = []
    for number in range(processes := max(1, min(processes, clients))):
        own = requests[number::processes]
        share = len(range(number, clients, processes))
        job = {"host": target.host, "port": target.port, "clients": share}
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        line = json.dumps({**job, "sizes": [len(each) for each in own]})
        process.stdin.write(line.encode() + b"\n" + b"".join(own))
        process.stdin.flush()
        running.append(process)
    try:
        for process in running:  # connected
            assert process.stdout is not None
            process.stdout.readline()
        for process in running:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        found = [json.loads(process.communicate(timeout=LOAD_S)[0] or "{}") for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    if errors := [each.get("error", "no answer") for each in found if "started" not in each]:
        raise RuntimeError(f"the load failed: {errors[0]}")
    begun, ended = min(each["started"] for each in found), max(each["ended"] for each in found)
    latencies = np.concatenate([each["latencies"] for each in found])
    p50, p99 = np.percentile(latencies, [50, 99])
    return Loaded(
        len(latencies),
        ended - begun,
        float(p50) * 1e3,
        float(p99) * 1e3,
        sum(each["cpu_s"] for each in found) / (ended - begun),
    )
