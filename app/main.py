"""Wires the service together: `create_app(settings)` returns the ASGI application."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from threading import Event, Thread

from anyio import to_thread
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from app import __version__, console
from app.access import endpoints as api_keys
from app.access.service import KeyRing
from app.anchors import endpoints as anchor_sets
from app.anchors import sample_endpoints as anchor_samples
from app.bootstrap import endpoints as bootstrap
from app.context import REQUEST_FIT_S, Services
from app.encoders import endpoints as encoders
from app.errors import FitQueued
from app.heads import endpoints as heads
from app.http import admission, bodies, docs, problems
from app.http.admission import Admission, AdmissionMiddleware
from app.jobs import answers as job_answers
from app.jobs import endpoints as jobs
from app.lanes import use_threads
from app.moves import endpoints as migrations
from app.openai import endpoints as openai
from app.openai.service import load_named_models
from app.ops import health
from app.search import endpoints as store_search
from app.settings import Settings
from app.stores import endpoints as stores
from app.translate import endpoints as translate
from app.translate import translator_endpoints as translators
from app.turns import Turns
from app.wiring import make_services
from workers.main import Worker

log = logging.getLogger("anchorage")

#: in the order in which a request's path is matched: the most frequent routes first
RESOURCES = (
    translate,
    store_search,
    stores,
    openai,
    heads,
    encoders,
    anchor_sets,
    anchor_samples,
    bootstrap,
    translators,
    migrations,
    jobs,
    api_keys,
    health,
)

DESCRIPTION = """
Moves a vector store to a new embedding model: every row gets a new vector while clients read and
write, and a rollback is one call.

1. Name both encoders with `POST /encoders`, and connect the store with `POST /stores`.
2. Plan with `POST /migrations`: rows, tokens, price, time. Nothing is written yet.
3. `run`, `verify` and `cutover` the migration; `rollback` undoes that, until `finish`.

To search the old vectors with the new model before that (`POST /stores/{name}/search`), and where
the texts are gone, it translates by *anchors*, items that both encoders have embedded (`POST
/anchor-sets`). Errors are `application/problem+json`: [this page](/docs/errors) explains each code.
"""

#: threads for files of pages, which need no key and are not counted at the door
FILE_THREADS = 8


def create_app(settings: Settings) -> FastAPI:
    """Returns the service. Without Redis, a worker in this process runs the jobs."""
    wakeup = Event()
    services = replace(
        make_services(settings), notify_workers=wakeup.set, request_fit_s=REQUEST_FIT_S
    )
    worker = Worker(services, wakeup) if settings.redis_url is None else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # No request waits for a thread: how many there are is decided at the door.
        threads = settings.max_in_flight + FILE_THREADS
        to_thread.current_default_thread_limiter().total_tokens = threads
        await run_in_threadpool(_start, services, worker)
        app.state.loading = Thread(target=load_named_models, args=(services,), daemon=True)
        app.state.loading.start()
        use_threads(1)  # the event loop computes small products; the lanes use the cores
        gauges = asyncio.create_task(admission.refresh_gauges(app.state.admission))
        yield
        gauges.cancel()
        app.state.admission.stopping = True
        if worker is not None:
            await run_in_threadpool(worker.stop)
        services.close()

    app = FastAPI(
        title="Anchorage",
        version=__version__,
        description=DESCRIPTION,
        openapi_tags=[{"name": name, "description": text} for name, text in docs.TAGS.items()],
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    docs.install(app)
    app.state.services = services
    app.state.health_checks = health.HealthChecks(
        worker_alive=None if worker is None else lambda: worker.alive,
        database_answers=health.SharedCheck(partial(health.database_answers, services)),
        disk_has_room=health.SharedCheck(partial(health.disk_has_room, services)),
        redis_answers=None
        if services.cache.store is None
        else health.SharedCheck(services.cache.store.takes_writes),
        device_failed=lambda: services.encoders.broken,
    )
    app.state.keys = KeyRing(services) if requires_keys(settings) else None
    app.state.admission = Admission(
        find_key=None if app.state.keys is None else app.state.keys.find,
        hosts=_hosts(settings),
        max_body_bytes=settings.max_body_bytes,
        max_json=settings.max_json,
        requests=Turns("requests", settings.max_in_flight),
        bytes=Turns("bytes of requests", settings.max_in_flight_bytes),
    )
    problems.install(app)
    app.add_exception_handler(FitQueued, job_answers.fit_queued)
    bodies.describe_bodies(app, [resource.router for resource in RESOURCES])
    for resource in RESOURCES:
        app.include_router(resource.router)
    console.install(app)
    app.add_middleware(AdmissionMiddleware, admission=app.state.admission)
    return app


def requires_keys(settings: Settings) -> bool:
    """Returns whether callers need an API key: by default, beyond loopback."""
    return settings.auth == "keys" or (settings.auth == "auto" and not is_loopback(settings.host))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _hosts(settings: Settings) -> frozenset[str] | None:
    """Returns the accepted names of the Host header; None: any, as keys keep web pages out."""
    if settings.allowed_hosts == "*" or (
        settings.allowed_hosts == "auto" and requires_keys(settings)
    ):
        return None
    if settings.allowed_hosts == "auto":
        return (
            None
            if not is_loopback(settings.host)
            else frozenset({"localhost", "127.0.0.1", "::1", settings.host.lower()})
        )
    return frozenset(name.strip().lower().strip("[]") for name in settings.allowed_hosts.split(","))


def _start(services: Services, worker: Worker | None) -> None:
    services.db.upgrade()
    if worker is not None:
        worker.start()
