"""Processes that a test kills: workers, or one that takes a step and kills itself on the way.

With `work` it forks a worker for each line that it reads, prints its id, and `killed` at its end:
forks start quickly.

python -m tests.services.reindexing.child DATA_DIR DATABASE_URL STORE_URL work
python -m tests.services.reindexing.child DATA_DIR DATABASE_URL STORE_URL before|after STEP ID
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from app.services.jobs import runner
from app.services.jobs.leases import Leases
from app.services.reindexing import migration, steps
from app.settings import Settings
from app.wiring import make_services
from tests.services.helpers import CONTEXT
from workers.main import RUNNERS


def main(folder: str, database: str, store: str, what: str, *more: str) -> None:
    settings = Settings(data_dir=Path(folder), database_url=database, stores={"main": store})
    if what == "work":
        for _ in sys.stdin:
            worker = os.fork()
            if worker == 0:
                work(settings)
            print(worker, flush=True)
            os.waitpid(worker, 0)
            print("killed", flush=True)
        return
    services = make_services(settings)
    step, reindexing = more
    row = steps.find_reindexing(services, CONTEXT.project, reindexing).row
    beside = type(migration.open_migration(services, row).beside)
    setattr(beside, step, killed(getattr(beside, step), after=what == "after"))
    getattr(steps, step)(services, CONTEXT, reindexing)


def work(settings: Settings) -> None:
    """Run jobs until the process is killed."""
    torch.set_num_threads(1)
    services = make_services(settings)
    while True:
        runner.run_next(services, RUNNERS, Leases(services))


def killed(act: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    """The step of the store, and a SIGKILL before or after it."""

    def die(*arguments: Any) -> None:
        if after:
            act(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    return die


if __name__ == "__main__":
    main(*sys.argv[1:])
