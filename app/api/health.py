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
from pydantic import BaseModel, Field
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

#: Seconds after which the database or Redis counts as unavailable.
PROBE_ANSWER_S = 1.5

#: prometheus_client's variable: the folder where several processes add up their metrics.
METRICS_DIR = "PROMETHEUS_MULTIPROC_DIR"


@dataclass(frozen=True)
class HealthChecks:
    """Checks of what the process depends on. None: it does not depend on it."""

    worker_alive: Callable[[], bool] | None
    redis_answers: Callable[[], bool] | None
    models_answer: Callable[[], bool]
    #: One thread for each check that can hang. Later probes wait for it, up to PROBE_ANSWER_S.
    database_thread: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))
    redis_thread: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))
    models_thread: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))


class Live(BaseModel):
    """The process answers requests."""

    status: Literal["ok"] = Field("ok", description="Always `ok`.")
    version: str = Field(__version__, description="Version of the service.")


class Ready(BaseModel):
    """What the process depends on, and whether it is available."""

    status: Literal["ok", "degraded", "stopping", "unavailable"] = Field(
        description="`degraded`: requests are served, but Redis is unavailable or read-only, so "
        "each process caches and counts on its own, or no model can run, so requests with "
        "inputs are refused."
    )
    database: bool = Field(description="Whether the database answers.")
    worker: bool | None = Field(
        description="Whether the worker in this process runs. Null if workers run elsewhere."
    )
    redis: bool | None = Field(
        description="Whether Redis answers and takes writes. Null if it is not used."
    )
    models: bool = Field(
        description="Whether models can encode: a model host answers, or the device works on which "
        "this process runs them."
    )


@router.head("/livez", include_in_schema=False)
@router.get("/livez", summary="Check that the process runs")
async def livez() -> Live:
    """Returns 200 as long as the process answers requests."""
    return Live()


@router.head("/readyz", include_in_schema=False)
@router.get(
    "/readyz",
    summary="Check that requests are served",
    responses={503: {"model": Ready, "description": "Something is unavailable, or it stops."}},
)
async def readyz(request: Request, response: Response, services: Svc) -> Ready:
    """Returns 200 if the process can serve requests, and 503 if it cannot or is stopping.

    It answers within 2 seconds.
    """
    checks: HealthChecks = request.app.state.health_checks
    answers: dict[str, bool] = {}

    async def run_check(name: str, check: Callable[[], bool], thread: CapacityLimiter) -> None:
        with move_on_after(PROBE_ANSWER_S):
            answers[name] = await to_thread.run_sync(check, limiter=thread, abandon_on_cancel=True)

    async with create_task_group() as group:
        group.start_soon(
            run_check, "database", partial(_database_answers, services), checks.database_thread
        )
        if checks.redis_answers is not None:
            group.start_soon(run_check, "redis", checks.redis_answers, checks.redis_thread)
        group.start_soon(run_check, "models", checks.models_answer, checks.models_thread)
    database = answers.get("database", False)
    worker = None if checks.worker_alive is None else checks.worker_alive()
    redis = None if checks.redis_answers is None else answers.get("redis", False)
    models = answers.get("models", False)
    status: Literal["ok", "degraded", "stopping", "unavailable"] = "ok"
    if redis is False or not models:
        status = "degraded"
    if not database or worker is False:
        status = "unavailable"
    if request.app.state.admission.stopping:
        status = "stopping"
    if status in ("unavailable", "stopping"):
        response.status_code = 503
        response.headers["Retry-After"] = "1"
    return Ready(status=status, database=database, worker=worker, redis=redis, models=models)


def _database_answers(services: Services) -> bool:
    try:
        services.db.ping()
    except SQLAlchemyError as error:
        log.warning("database check failed: %s", type(error).__name__)
        return False
    return True


@router.get(
    "/metrics",
    summary="Get metrics for Prometheus",
    responses={200: {"content": {"text/plain": {}}}, **documented()},
    response_class=Response,
)
def metrics(request: Request, services: Svc, project: Reads) -> Response:
    """Returns the metrics of the service, and those of the project's translators.

    No label holds the name of a resource.
    """
    admission.set_gauges(request.app.state.admission)
    data = generate_latest(_registry())
    try:
        data += generate_latest(make_registry(read_metrics(services, project)))
    except DatabaseUnavailable as error:
        log.warning("metrics from the database are missing: %s", error.detail)
    return Response(data, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _registry() -> CollectorRegistry:
    """The metrics of this process, or of all processes of the server together."""
    if METRICS_DIR not in os.environ:
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry
