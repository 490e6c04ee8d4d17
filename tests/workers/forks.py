"""Forks a worker process for each line it reads and prints its id: forks start quickly.

It has imported everything and computed nothing. Each fork opens its own connections and also runs
the test's own kind of job.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from app.context import Services
from app.db import tables
from app.jobs import progress
from app.jobs import worker as runner
from app.settings import Settings
from workers.main import RUNNERS
from workers.processes import work

#: while the job's file is there, a try goes this far and no further
STEPS_OF_A_TRY = 20


def iterate(
    services: Services, job: tables.JobRow, progress: progress.Progress
) -> runner.JobResult:
    """A chaotic sequence: a step that is left out or repeated changes every later number."""
    hold, total = Path(job.arguments["hold"]), job.arguments["steps"]
    weights = torch.randn(50, 50, generator=torch.Generator().manual_seed(0))
    draws = torch.Generator().manual_seed(1)
    state = progress.resume() or {
        "x": torch.zeros(50),
        "draws": draws.get_state(),
        "step": torch.tensor(0),
    }
    x, begun = state["x"], int(state["step"])
    draws.set_state(state["draws"])
    for step in range(begun + 1, total + 1):
        x = torch.tanh(weights @ x + torch.randn(50, generator=draws))
        while hold.exists() and step > begun + STEPS_OF_A_TRY:
            progress(step, total)  # a sign of life
            time.sleep(0.01)
        progress.checkpoint(step, {"x": x, "draws": draws.get_state(), "step": torch.tensor(step)})
        progress(step, total, {"length": float(x.norm())})
        if hold.exists():
            time.sleep(0.005)  # somewhere here it is killed
    return runner.JobResult({"x": x.tolist(), "begun": begun})


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
    RUNNERS["iterate"] = iterate
    RUNNERS["die"], RUNNERS["break"] = failing_once(SystemExit()), failing_once(broken)
    runner.JOB_BACKOFF_S = 0.01
    progress.CHECKPOINT_EVERY_S, progress.CHECKPOINT_SHARE = 0.0, 0.5
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
