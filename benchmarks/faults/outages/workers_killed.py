"""Workers killed while they run jobs, and workers stopped for longer than their lease, which then
continue.
"""

from __future__ import annotations

import random
import signal
import time
from contextlib import suppress
from functools import partial

from benchmarks.faults.deployment import Deployment, Worker, deployment, dice, wait_until
from benchmarks.faults.row import Row, Stage
from benchmarks.faults.traffic import Balancer, Client
from benchmarks.faults.truth import VARIANTS, World

JOBS = 50
KILLS = 20

PAUSES = 5

#: the other worker must finish a stopped worker's job within this number of seconds, or it counts
#: as lost
TAKEN_UP_S = 60


def killed(stage: Stage) -> Row:
    """One of two workers, at random, killed 20 times during 50 jobs, and started again at once."""
    row, draw, running = Row(), dice(0), set[str]()
    with deployment(stage.folder / "killed", apis=1) as made:
        world, client = _queue(made, row, JOBS)
        for kill in range(KILLS):
            _wait_for_jobs(world, made, kill * JOBS // KILLS)
            time.sleep(draw.uniform(0, 1))
            victim = _one_ready(made, draw)
            victim.kill()
            running |= _leases(made, "running")
            victim.start()
            stage.say(f"{kill + 1} of {KILLS} kills, {world.finished(made)} of {JOBS} jobs ended")
        world.settle(made, client)
        # Tries under way at a kill, without those that ended well.
        cut = len(running - _leases(made, "succeeded"))
    row.done = f"{JOBS} jobs, 2 workers, {KILLS} SIGKILLs: {cut} tries cut short"
    return row


def paused(stage: Stage) -> Row:
    """The other worker takes over the job of a stopped one, which then continues and must change
    nothing.
    """
    row, draw = Row(), dice(1)
    with deployment(stage.folder / "paused", apis=1) as made:
        world, client = _queue(made, row, 0)
        for pause in range(PAUSES):
            for worker in made.workers:
                world.grow(client, f"{worker.name}-{pause}", pause % VARIANTS)
            wait_until(
                lambda: _running(made) == len(made.workers), "both workers to work", pause_s=0.005
            )
            victim = draw.choice(made.workers)
            victim.signal(signal.SIGSTOP)
            try:
                wait_until(
                    lambda: world.finished(made) == len(world.jobs),
                    "the other worker to do both jobs",
                    timeout_s=TAKEN_UP_S,
                )
            except TimeoutError as error:
                row.tally.add("lost", str(error))
            victim.signal(signal.SIGCONT)
            with suppress(TimeoutError):
                wait_until(partial(_some_late, made, pause + 1), "it to notice", timeout_s=10)
            stage.say(f"{pause + 1} of {PAUSES} stops, {_late_ends(made)} late ends refused")
        world.settle(made, client)
        late = _late_ends(made)
    row.done = (
        f"{len(world.jobs)} jobs, 2 workers, {PAUSES} SIGSTOPs until the other worker did the job: "
        f"{late} late ends refused"
    )
    return row


def _leases(made: Deployment, state: str) -> set[str]:
    """The leases of the jobs in that state. Each try has its own lease."""
    return {
        lease for (lease,) in made.postgres.rows("SELECT lease FROM jobs WHERE state = %s", state)
    }


def _some_late(made: Deployment, count: int) -> bool:
    return _late_ends(made) >= count


def _late_ends(made: Deployment) -> int:
    """How many workers have found that another worker took over their job."""
    return sum(worker.said(" job taken over after") for worker in made.workers)


def _queue(made: Deployment, row: Row, jobs: int) -> tuple[World, Client]:
    world = World(row.tally)
    client = Client(Balancer(made.urls), row.tally)
    world.stock(client)
    for number in range(jobs):
        world.grow(client, f"grown-{number}", number % VARIANTS)
    return world, client


def _wait_for_jobs(world: World, made: Deployment, ended: int) -> None:
    wait_until(lambda: world.finished(made) >= ended, f"{ended} jobs to end", pause_s=0.1)


def _one_ready(made: Deployment, draw: random.Random) -> Worker:
    """A worker that takes jobs now."""
    wait_until(lambda: any(worker.ready() for worker in made.workers), "a worker to be ready")
    return draw.choice([worker for worker in made.workers if worker.ready()])


def _running(made: Deployment) -> int:
    return made.postgres.number("SELECT count(*) FROM jobs WHERE state = 'running'")
