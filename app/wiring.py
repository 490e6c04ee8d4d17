"""From settings to services: what the API, the worker and the command line all start with."""

from __future__ import annotations

import torch

from app.encoders.registry import EncoderPool
from app.services.context import Limits, Services
from app.settings import Settings
from app.storage.blobs import BlobStore
from app.storage.cache import Cache, RedisStore
from app.storage.connect import redis_client
from app.storage.db import Database, sqlite_url
from app.storage.queue import MemoryQueue, Queue, RedisQueue


def make_services(settings: Settings, *, device: str = "cpu") -> Services:
    """Everything the use cases need. Nothing is connected yet."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    store = None
    if settings.redis_url is not None:
        store = RedisStore(redis_client(settings.redis_url), settings.redis_prefix, settings.redis_cache_bytes)
    return Services(
        db=make_database(settings),
        blobs=BlobStore(settings.data_dir / "blobs"),
        cache=Cache(settings.cache_bytes, store),
        encoders=EncoderPool(models_dir=settings.models_dir, allow_hub=settings.allow_hub),
        limits=Limits(
            vectors=settings.max_vectors,
            pool=settings.max_pool,
            jobs=settings.max_jobs,
            project_jobs=settings.max_project_jobs,
        ),
        lease_s=settings.lease_s,
        device=device,
    )


def make_database(settings: Settings) -> Database:
    return Database(settings.database_url or sqlite_url(settings.data_dir / "anchorage.db"))


def make_queue(settings: Settings) -> Queue:
    """Between processes when there is a Redis, else within this one."""
    if settings.redis_url is None:
        return MemoryQueue()
    return RedisQueue(redis_client(settings.redis_url), settings.redis_prefix)
