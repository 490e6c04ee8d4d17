"""Which use case runs which kind of job, and the one actor that does."""

from __future__ import annotations

from collections.abc import Callable

import dramatiq
from dramatiq import Actor, Broker

from app.services import jobs
from app.services.bootstrapping import run_bootstrap
from app.services.context import Services
from app.services.embedding import run_embed
from app.services.evaluation import run_evaluation
from app.services.translation import run_translator
from app.storage.queue import ACTOR, QUEUE
from app.types import JobKind

RUNNERS: dict[str, jobs.Run] = {
    JobKind.bootstrap: run_bootstrap,
    JobKind.embed: run_embed,
    JobKind.translator: run_translator,
    JobKind.evaluate: run_evaluation,
}


def declare(broker: Broker, services: Services, leases: jobs.Leases, stopping: Callable[[], bool]) -> Actor[[str], None]:
    """The actor that runs a job by its id, bound to the broker; when `stopping()` turns true it hands its job back."""

    @dramatiq.actor(broker=broker, queue_name=QUEUE, actor_name=ACTOR)
    def run_job(job_id: str) -> None:
        jobs.run(services, job_id, RUNNERS, leases, stopping=stopping)

    return run_job
