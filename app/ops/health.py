"""/livez, /readyz and /metrics: probes of the process, and its metrics."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Literal

from anyio import move_on_after
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from app import __version__
from app.context import Services
from app.errors import DatabaseUnavailable
from app.http import admission
from app.http.deps import Reads, Svc
from app.http.problems import documented
from app.ops.database_metrics import DatabaseMetrics, read_metrics
from app.ops.metrics import DEPENDENCY_UP

router = APIRouter(tags=["Health"])
log = logging.getLogger("anchorage")

#: Seconds after which the database or Redis counts as unavailable.
PROBE_ANSWER_S = 1.5

#: Free bytes below which the disk of the data dir counts as full.
FREE_BYTES = 16 * 2**20

#: prometheus_client's variable: the folder where several processes add up their metrics.
METRICS_DIR = "PROMETHEUS_MULTIPROC_DIR"


class SharedCheck:
    """A check that can hang. Probes that come while one runs wait for the same answer."""

    def __init__(self, check: Callable[[], bool]) -> None:
        self._check = check
        self._running: Future[bool] | None = None

    async def answer(self) -> bool:
        """Return the answer, or False after PROBE_ANSWER_S. Raises the errors of the check."""
        if self._running is None or self._running.done():
            self._running = Future()
            # A daemon, so that a check that hangs does not delay the end of the process.
            Thread(target=self._run, args=(self._running,), name="health", daemon=True).start()
        with move_on_after(PROBE_ANSWER_S):
            return await asyncio.shield(asyncio.wrap_future(self._running))
        return False

    def _run(self, answer: Future[bool]) -> None:
        try:
            answer.set_result(self._check())
        except Exception as error:
            answer.set_exception(error)


@dataclass(frozen=True)
class HealthChecks:
    """Checks of what the process depends on. None: it does not depend on it."""

    worker_alive: Callable[[], bool] | None
    database_answers: SharedCheck
    disk_has_room: SharedCheck
    redis_answers: SharedCheck | None
    #: whether the device failed on which this process runs models
    device_failed: Callable[[], bool]

    async def dependencies(self) -> dict[str, bool]:
        """Returns what answers now; `redis` is missing where it is not used."""
        checks = {"database": self.database_answers, "disk": self.disk_has_room}
        if self.redis_answers is not None:
            checks["redis"] = self.redis_answers
        answers = await asyncio.gather(*(check.answer() for check in checks.values()))
        return {**dict(zip(checks, answers, strict=True)), "models": not self.device_failed()}


class Live(BaseModel):
    """The process answers requests."""

    status: Literal["ok", "device-failed"] = Field(
        description="`ok`, or `device-failed` once the GPU on which it runs models has failed."
    )
    version: str = Field(__version__, description="Version of the service.")


class Ready(BaseModel):
    """What the process depends on, and whether it is available."""

    status: Literal["ok", "degraded", "starting", "stopping", "unavailable"] = Field(
        description="`degraded`: requests are served, but Redis is unavailable or read-only, so "
        "each process caches and counts on its own; or no model can run, so requests with "
        "inputs are refused; or the disk is full, so writes are refused. `starting`: requests are "
        "served, but those by the name of a store wait until its model is loaded."
    )
    database: bool = Field(description="Whether the database answers.")
    worker: bool | None = Field(
        description="Whether the worker in this process runs. Null if workers run elsewhere."
    )
    redis: bool | None = Field(
        description="Whether Redis answers and takes writes. Null if it is not used."
    )
    models: bool = Field(
        description="Whether models can encode: the device works on which this process runs them."
    )


@router.head("/livez", include_in_schema=False)
@router.get(
    "/livez",
    summary="Check that the process runs",
    responses={503: {"model": Live, "description": "Its device has failed. Restart it."}},
)
async def livez(request: Request, response: Response) -> Live:
    """Returns 200 as long as the process answers requests, and 503 after its GPU has failed.

    Only a new process can use the GPU again: restart this one.
    """
    if request.app.state.health_checks.device_failed():
        response.status_code = 503
        return Live(status="device-failed")
    return Live(status="ok")


@router.head("/readyz", include_in_schema=False)
@router.get(
    "/readyz",
    summary="Check that requests are served",
    responses={
        503: {"model": Ready, "description": "Something is unavailable, or it starts or stops."}
    },
)
async def readyz(request: Request, response: Response) -> Ready:
    """Returns 200 if the process can serve requests, and 503 if it cannot, starts or stops.

    It answers within 2 seconds.
    """
    checks: HealthChecks = request.app.state.health_checks
    answers = await checks.dependencies()
    database, models, redis = answers["database"], answers["models"], answers.get("redis")
    worker = None if checks.worker_alive is None else checks.worker_alive()
    status: Literal["ok", "degraded", "starting", "stopping", "unavailable"] = "ok"
    if redis is False or not models or not answers["disk"]:
        status = "degraded"
    if request.app.state.loading.is_alive():
        status = "starting"
    if not database or worker is False:
        status = "unavailable"
    if request.app.state.admission.stopping:
        status = "stopping"
    if status in ("unavailable", "starting", "stopping"):
        response.status_code = 503
        response.headers["Retry-After"] = "1"
    return Ready(status=status, database=database, worker=worker, redis=redis, models=models)


def database_answers(services: Services) -> bool:
    """Whether the database answers."""
    try:
        services.db.ping()
    except SQLAlchemyError as error:
        log.warning("database check failed: %s", type(error).__name__)
        return False
    return True


def disk_has_room(services: Services) -> bool:
    """Whether the disk of the data dir has room for writes."""
    return shutil.disk_usage(services.blobs.root).free >= FREE_BYTES


@router.get(
    "/metrics",
    summary="Get metrics for Prometheus",
    responses={200: {"content": {"text/plain": {}}}, **documented()},
    response_class=Response,
)
async def metrics(request: Request, services: Svc, _: Reads) -> Response:
    """Returns the metrics of the service.

    No label holds the name of a resource.
    """
    admission.set_gauges(request.app.state.admission)
    checks: HealthChecks = request.app.state.health_checks
    for dependency, up in (await checks.dependencies()).items():
        DEPENDENCY_UP.labels(dependency).set(up)
    return await run_in_threadpool(_read_metrics, services)


class DatabaseCollector(Collector):
    """Gauges of metrics that the database knows, which have been read already."""

    def __init__(self, found: DatabaseMetrics) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        found = self._found
        jobs = GaugeMetricFamily("anchorage_jobs", "Unfinished jobs, by state.", labels=["state"])
        for state, count in found.jobs.items():
            jobs.add_metric([state], count)
        yield jobs
        yield GaugeMetricFamily(
            "anchorage_queue_oldest_seconds",
            "How long the oldest queued job has waited.",
            value=found.oldest_queued_s,
        )
        encoders = GaugeMetricFamily(
            "anchorage_encoders_checked",
            "Encoders by the result of their last check: unchanged, moved, replaced or unchecked.",
            labels=["result"],
        )
        for result, count in found.encoders.items():
            encoders.add_metric([result], count)
        yield encoders


def _read_metrics(services: Services) -> Response:
    services.blobs.update_metrics()
    data = generate_latest(_registry())
    try:
        known = CollectorRegistry()
        known.register(DatabaseCollector(read_metrics(services)))
        data += generate_latest(known)
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
