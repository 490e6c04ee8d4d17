"""Real processes for the fault table: Redis, PostgreSQL, APIs and workers on free ports, below one
folder.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import redis

from app.db.session import Database
from app.demo.server import free_port
from scripts.servers import Postgres, binary

#: a worker that is silent for this time loses its jobs
LEASE_S = 3

#: what a worker process logs when it is ready
TAKES_JOBS = " takes jobs on "

#: generous, because importing torch is slow while other processes use the same cores
START_S = 180


def wait_until(
    happened: Callable[[], object], what: str, timeout_s: float = START_S, pause_s: float = 0.05
) -> None:
    """Wait until `happened()` is true. Raises TimeoutError, naming `what`."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s in vain: {what}")
        time.sleep(pause_s)


def dice(seed: int) -> random.Random:
    """A generator for victims and moments: the same ones in every run."""
    return random.Random(seed)  # noqa: S311 -- no secrets


class Process:
    """A process that can be killed and started again. All its runs write to one log."""

    def __init__(
        self, name: str, command: list[str], folder: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the present run."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs, ready or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL: the process and those that it started finish nothing and log nothing."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def end(self, timeout_s: float = 60) -> None:
        """SIGTERM, then SIGKILL if it has not ended in time."""
        if self._process is None or not self.alive:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def said(self, words: str) -> int:
        """How often the log contains these words."""
        return self.log.read_text(errors="replace").count(words) if self.log.exists() else 0

    def wait_ready(self) -> None:
        """Wait until it is ready. Raises RuntimeError with the last log lines if it ends before."""

        def ready() -> bool:
            if not self.alive:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
                raise RuntimeError(f"{self.name} ended:\n{tail}")
            return self.ready()

        wait_until(ready, f"{self.name} to be ready", pause_s=0.1)

    def ready(self) -> bool:
        """Whether it does its work now."""
        return self.alive


class RedisServer(Process):
    """A Redis without persistence: once killed, it has lost everything."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        options = [
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(folder),
        ]
        super().__init__("redis", [binary("redis-server", "valkey-server"), *options], folder)
        self.client = redis.Redis.from_url(self.url)

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


class Api(Process):
    """`anchorage serve`."""

    def __init__(
        self,
        number: int,
        folder: Path,
        environment: dict[str, str],
        *,
        prefix: tuple[str, ...] = (),
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [*prefix, sys.executable, "-m", "app.cli", "serve", "--port", str(port)]
        super().__init__(f"api-{number}", command, folder, environment)

    def ready(self) -> bool:
        """Whether /readyz answers 200."""
        try:
            return httpx2.get(f"{self.url}/readyz", timeout=5, trust_env=False).status_code == 200
        except httpx2.TransportError:
            return False


class Worker(Process):
    """`anchorage worker`."""

    def __init__(self, number: int, folder: Path, environment: dict[str, str]) -> None:
        port = free_port()
        self.metrics_url = f"http://127.0.0.1:{port}/metrics"
        environment = {
            "ANCHORAGE_DEVICES": "cpu",
            **environment,
            "ANCHORAGE_WORKER_METRICS_PORT": str(port),
        }
        super().__init__(
            f"worker-{number}", [sys.executable, "-m", "app.cli", "worker"], folder, environment
        )
        self._said_before = 0

    def start(self) -> None:
        """Start it."""
        self._said_before = self.said(TAKES_JOBS)
        super().start()

    def ready(self) -> bool:
        """Whether the present run has logged that it takes jobs."""
        return self.alive and self.said(TAKES_JOBS) > self._said_before


@dataclass
class Deployment:
    """All processes of a service, each on its own."""

    folder: Path
    redis: RedisServer
    postgres: Postgres
    environment: dict[str, str] = field(default_factory=dict)
    apis: list[Api] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)

    @property
    def data_dir(self) -> Path:
        """The data folder that all processes share."""
        return self.folder / "data"

    @property
    def urls(self) -> list[str]:
        """The URLs of the APIs."""
        return [api.url for api in self.apis]

    @property
    def blobs(self) -> set[Path]:
        """All blob files there are now, complete or not."""
        return set((self.data_dir / "blobs").glob("??/*"))


@contextmanager
def deployment(
    folder: Path, *, apis: int = 2, workers: int = 2, **settings: object
) -> Iterator[Deployment]:
    """Start a fresh deployment below `folder`, and end it afterwards; `settings` become ANCHORAGE_
    variables.

    Raises Missing.
    """
    folder.mkdir(exist_ok=True)
    with ExitStack() as ending:
        made = Deployment(folder, RedisServer(folder), Postgres(folder))
        (made.data_dir / "blobs").mkdir(parents=True, exist_ok=True)
        ending.callback(made.redis.kill)
        made.redis.start()
        made.postgres.create()
        ending.callback(made.postgres.stop, "immediate")
        _migrate(made.postgres.url)
        made.environment = _environment(made, settings)
        made.apis = [Api(number, folder, made.environment) for number in range(apis)]
        made.workers = [Worker(number, folder, made.environment) for number in range(workers)]
        processes: list[Process] = [*made.apis, *made.workers]
        for process in processes:
            ending.callback(process.kill)
            process.start()
        for process in processes:
            process.wait_ready()
        yield made


def _migrate(url: str) -> None:
    database = Database(url)
    database.upgrade()
    database.close()


def _environment(made: Deployment, settings: dict[str, object]) -> dict[str, str]:
    """Without the caller's own ANCHORAGE_ variables, so that the script alone decides what is
    measured.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANCHORAGE_")}
    wanted = {
        "data_dir": made.data_dir,
        "database_url": made.postgres.url,
        "redis_url": made.redis.url,
        "lease_s": LEASE_S,
        "threads": 1,
        **settings,
    }
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        **{f"ANCHORAGE_{name.upper()}": str(value) for name, value in wanted.items()},
    }


def end_on_sigterm() -> None:
    """Turn SIGTERM into KeyboardInterrupt, so that a terminated script ends its processes, too."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
