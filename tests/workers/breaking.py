"""`anchorage worker` with a kind of job that breaks the device of its process, and short pauses.

Worker processes run the top of this file too, as they do that of every main module.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from app.context import Services
from app.db import tables
from app.jobs import progress, supervisor
from app.jobs import worker as runner
from app.settings import Settings
from workers import processes
from workers.main import RUNNERS

#: what torch says of a kernel that read outside of its memory
ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered"


def break_device(
    services: Services, job: tables.JobRow, progress: progress.Progress
) -> runner.JobResult:
    """Note the process, and fail like a broken context in the first attempts."""
    tried = Path(job.arguments["tried"])
    with tried.open("a") as file:
        file.write(f"{os.getpid()}\n")
    attempts = len(tried.read_text().splitlines())
    if attempts <= job.arguments["breaks"]:
        raise torch.AcceleratorError(ILLEGAL_ACCESS)
    return runner.JobResult({"attempts": attempts})


RUNNERS["break"] = break_device
runner.JOB_BACKOFF_S = 0.01
processes.THREAD_CHECK_S = supervisor.RESTART_S = 0.05

if __name__ == "__main__":
    sys.exit(processes.main(Settings()))
