"""/livez, /readyz and /metrics: probes of the process, and its metrics."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from anyio import CapacityLimiter, create_task_group, move_on_after, to_thread
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from app import __version__
from app.api.database_collector import make_registry
from app.api.http import admission
from app.api.http.deps import Reads, Svc
from app.api.http.problems import documented
from app.errors import DatabaseUnavailable
from app.services.context import Services
from app.services.upkeep.database_metrics import read_metrics

router = APIRouter(tags=["health"])
log = logging.getLogger("anchorage")

#: time for the database and Redis to answer; after it they count as away
PROBE_ANSWER_S = 1.5

#: prometheus_client's variable for the folder in which several processes share their metrics
METRICS_DIR = "PROMETHEUS_MULTIPROC_DIR"


@dataclass(frozen=True)
class Parts:
    """How to check what the process depends on; None: it does not depend on it.

    database_thread, redis_thread  one thread for each check that can hang: other probes share it
    """

    worker_alive: Callable[[], bool] | None
    redis_answers: Callable[[], bool] | None
    database_thread: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))
    redis_thread: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))


class Live(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"
    version: str = __version__


class Ready(BaseModel):
    """What the process needs to serve requests, and whether it works; null: not needed.

    degraded: the process serves, but Redis is away or stores nothing, so that each process has its
    own cache and counts its own rates.
    """

    status: Literal["ok", "degraded", "stopping", "unavailable"]
    database: bool
    worker: bool | None
    redis: bool | None


@router.head("/livez", include_in_schema=False)
@router.get("/livez")
async def livez() -> Live:
    """Answers 200 while the process runs."""
    return Live()


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses={503: {"model": Ready}})
async def readyz(request: Request, response: Response, services: Svc) -> Ready:
    """Answers 200 if the process can serve, and 503 with the reason if not, within 2 seconds."""
    parts: Parts = request.app.state.parts
    answers: dict[str, bool] = {}

    async def ask(name: str, question: Callable[[], bool], thread: CapacityLimiter) -> None:
        with move_on_after(PROBE_ANSWER_S):
            answers[name] = await to_thread.run_sync(
                question, limiter=thread, abandon_on_cancel=True
            )

    async with create_task_group() as asking:
        asking.start_soon(
            ask, "database", partial(_database_answers, services), parts.database_thread
        )
        if parts.redis_answers is not None:
            asking.start_soon(ask, "redis", parts.redis_answers, parts.redis_thread)
    database = answers.get("database", False)
    worker = None if parts.worker_alive is None else parts.worker_alive()
    redis = None if parts.redis_answers is None else answers.get("redis", False)
    status: Literal["ok", "degraded", "stopping", "unavailable"] = "ok"
    if redis is False:
        status = "degraded"
    if not database or worker is False:
        status = "unavailable"
    if request.app.state.admission.stopping:
        status = "stopping"
    if status in ("unavailable", "stopping"):
        response.status_code = 503
        response.headers["Retry-After"] = "1"
    return Ready(status=status, database=database, worker=worker, redis=redis)


def _database_answers(services: Services) -> bool:
    try:
        services.db.ping()
    except SQLAlchemyError as error:
        log.warning("database check failed: %s", type(error).__name__)
        return False
    return True


@router.get(
    "/metrics",
    responses={200: {"content": {"text/plain": {}}}, **documented()},
    response_class=Response,
)
def metrics(request: Request, services: Svc, project: Reads) -> Response:
    """Metrics for Prometheus: of this process, and of the project's translators, without names."""
    admission.set_gauges(request.app.state.admission)
    data = generate_latest(_counted())
    try:
        data += generate_latest(make_registry(read_metrics(services, project)))
    except DatabaseUnavailable as error:
        log.warning("no metrics from the database: %s", error.detail)
    return Response(data, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _counted() -> CollectorRegistry:
    """Returns the metrics of this process, or of all processes that serve together."""
    if METRICS_DIR not in os.environ:
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry
