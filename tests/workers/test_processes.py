"""`anchorage worker`: real processes, killed and stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from app.jobs.supervisor import CANNOT_START
from app.ops.devices import devices
from app.types import JobState
from tests.helpers import alter
from tests.waiting import until

ROOT = Path(__file__).parents[2]
WORKER = ("app.cli", "worker")


@pytest.fixture
def environment(deployment) -> dict[str, str]:
    """What tells a process the deployment's settings."""
    settings = deployment.settings
    return {
        **os.environ,
        "ANCHORAGE_DATA_DIR": str(settings.data_dir),
        "ANCHORAGE_DATABASE_URL": str(settings.database_url),
        "ANCHORAGE_LEASE_S": "2",
        "ANCHORAGE_THREADS": "1",
        "ANCHORAGE_DEVICES": "cpu",
    }


@pytest.fixture
def start(environment) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `anchorage worker`, or another main module, with the deployment's settings."""
    started = []

    def start(devices: str, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", *(command or WORKER)],
            cwd=ROOT,
            env={**environment, "ANCHORAGE_DEVICES": devices},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        for child in children(process):
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.communicate()


@pytest.fixture
def fork(environment) -> Iterator[Callable[[], int]]:
    """Starts worker processes that know the jobs `die` and `break`, and returns their ids."""
    with subprocess.Popen(
        [sys.executable, Path(__file__).with_name("forks.py")],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:

        def fork() -> int:
            process.stdin.write("\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield fork
        os.killpg(process.pid, signal.SIGKILL)


LONG = {"items": 2_000, "attempts": 64}


def running(row) -> bool:
    return row.state == JobState.running and bool(row.progress)


def forks(pid: int) -> dict[int, bytes]:
    """The processes that this one started, with their command lines."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in found}
    except FileNotFoundError:  # one ended meanwhile
        return {}


def children(process: subprocess.Popen[str]) -> set[int]:
    """The worker processes that this one watches: a process that has imported everything forks."""
    servers = [pid for pid, line in forks(process.pid).items() if b"forkserver" in line]
    return {child for server in servers for child in forks(server)}


def wait_taking(process: subprocess.Popen[str], count: int) -> None:
    """Wait until so many workers have said that they take jobs."""
    while count:
        line = process.stderr.readline()
        assert line, "it ended"
        count -= "takes jobs" in line


ON_LINUX = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="asks Linux which processes there are"
)


@ON_LINUX
def test_killed_processes_are_replaced_their_job_is_finished_and_a_stop_hands_back(
    deployment, start
):
    process = start("cpu,cpu")
    wait_taking(process, 2)
    job_id = deployment.bootstrap("first", **LONG)
    lost = deployment.wait(job_id, running).lease
    victims = children(process)
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    row = deployment.row(job_id)
    settings = {**row.arguments["settings"], "attempts": 1}
    alter(deployment.services, row, arguments={**row.arguments, "settings": settings})
    row = deployment.ended(job_id)
    assert (row.state, row.lease != lost) == (JobState.succeeded, True)
    deployment.wait(job_id, lambda row: len(children(process) - victims) == 2)

    job_id = deployment.bootstrap("second", **LONG)
    deployment.wait(job_id, running)
    left = children(process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    row = deployment.row(job_id)
    assert (row.state, row.attempts, row.lease) == (JobState.queued, 0, None)
    assert not any(Path(f"/proc/{child}").exists() for child in left)


def test_a_worker_that_cannot_start_ends_the_command(deployment, environment):
    """Such as a port in use: another attempt would not start either."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", *WORKER],
            cwd=ROOT,
            env={**environment, "ANCHORAGE_WORKER_METRICS_PORT": port},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == CANNOT_START, done.stderr
    assert "cannot start" in done.stderr
    assert "Address already in use" in done.stderr


@pytest.mark.parametrize("kind", ["die", "break"])
def test_a_process_that_lost_a_thread_or_its_device_ends_and_another_runs_its_job(
    deployment, fork, tmp_path, kind
):
    """Whoever watches the process starts another one."""
    worker = fork()
    job_id = deployment.submit(kind, tried=str(tmp_path / "tried"))
    until(lambda: not Path(f"/proc/{worker}").exists())
    fork()
    row = deployment.ended(job_id)
    assert (row.state, row.attempts) == (JobState.succeeded, 2)


def test_devices_are_named_one_by_one_and_auto_means_every_cuda_device_or_else_the_cpu():
    count = torch.cuda.device_count()
    assert devices("auto") == ([f"cuda:{index}" for index in range(count)] or ["cpu"])
    assert devices(" cpu , cpu,") == ["cpu", "cpu"]
    for wish in (" , ", "gpu", "cuda:100", "cpu,cuda:x", "cpu:0"):
        with pytest.raises(ValueError, match="cpu"):
            devices(wish)


@ON_LINUX
def test_workers_end_with_the_process_that_watches_them(deployment, start):
    process = start("cpu")
    wait_taking(process, 1)
    (worker,) = children(process)
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{worker}").exists())
