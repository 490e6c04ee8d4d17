"""Forks a worker process for each line it reads and prints its id: forks start quickly.

It has imported everything and computed nothing. Each fork opens its own connections and also runs
the tests' own kinds of job.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from app.context import Services
from app.db import tables
from app.jobs import progress
from app.jobs import worker as runner
from app.settings import Settings
from workers.main import RUNNERS
from workers.processes import work


def failing_once(error: BaseException) -> runner.JobRunner:
    """A job whose first attempt raises this error in its thread."""

    def work(
        services: Services, job: tables.JobRow, progress: progress.Progress
    ) -> runner.JobResult:
        tried = Path(job.arguments["tried"])
        if not tried.exists():
            tried.touch()
            raise error
        return runner.JobResult({})

    return work


def main() -> None:
    """Fork until the input ends."""
    broken = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    RUNNERS["die"], RUNNERS["break"] = failing_once(SystemExit()), failing_once(broken)
    runner.JOB_BACKOFF_S = 0.01
    settings = Settings()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            os._exit(work(settings, "cpu", 0))
        print(child, flush=True)


if __name__ == "__main__":
    main()
