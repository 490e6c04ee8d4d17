"""create_app(settings): wiring only."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.concurrency import run_in_threadpool

from app import __version__
from app.api import anchor_sets, bootstrap, encoders, health, jobs, problems, relative, stitch, translate
from app.encoders.registry import EncoderPool
from app.services import spaces
from app.services.context import Limits, Services
from app.settings import Settings
from app.storage.blobs import BlobStore
from app.storage.cache import MemoryCache
from app.storage.db import Database, sqlite_url
from workers.main import EmbeddedWorker

log = logging.getLogger("anchorage")

DESCRIPTION = """
Translates embeddings between encoders from a few hundred *parallel anchors*: the same items embedded by each encoder.

1. `POST /encoders` for each encoder.
2. `POST /anchor-sets` with the anchors' embeddings by each of them.
3. `POST /translate`, `/relative` or `/stitch`; `POST /translators` says how good a translation is.

Errors are `application/problem+json` with a stable `code`.
"""


def create_app(settings: Settings) -> FastAPI:
    """The whole service in one process: SQLite or PostgreSQL, blobs, an in-process cache and an embedded worker."""
    services = make_services(settings)
    worker = EmbeddedWorker(services)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(_start, services, worker)
        yield
        await run_in_threadpool(worker.stop)
        services.db.close()

    app = FastAPIOffline(
        title="Anchorage",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.services = worker.services
    app.state.worker_alive = lambda: worker.alive
    app.state.max_body_bytes = settings.max_body_bytes
    problems.install(app)
    for resource in (encoders, anchor_sets, relative, translate, stitch, bootstrap, jobs, health):
        app.include_router(resource.router)
    _document_problems(app)
    return app


def make_services(settings: Settings) -> Services:
    """Everything the use cases need, from the settings."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    return Services(
        db=Database(settings.database_url or sqlite_url(settings.data_dir / "anchorage.db")),
        blobs=BlobStore(settings.data_dir / "blobs"),
        cache=MemoryCache(settings.cache_bytes),
        encoders=EncoderPool(models_dir=settings.models_dir, allow_hub=settings.allow_hub),
        limits=Limits(vectors=settings.max_vectors, pool=settings.max_pool),
    )


def _start(services: Services, worker: EmbeddedWorker) -> None:
    services.db.migrate()
    if swept := spaces.sweep_blobs(services):
        log.info("deleted %d blobs that nothing names", swept)
    if recovered := worker.start():
        log.info("took up %d unfinished jobs", recovered)


def _document_problems(app: FastAPI) -> None:
    """Put the problem schema, which no route returns as a model, into the OpenAPI document."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        if "Problem" not in schemas:
            schema = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas["Problem"] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]
