"""Makes services from settings, for the API, the worker and the command line."""

from __future__ import annotations

import re

import torch

from app.context import ANSWER_NUMBERS_A_VECTOR, Limits, Services
from app.db.blobs import BlobStore
from app.db.budget import TextBudget
from app.db.cache import Cache, NameCache
from app.db.redis import RedisStore
from app.db.session import Database, sqlite_url
from app.encoders.models.base import ModelSources
from app.encoders.models.options import normal_url
from app.encoders.models.pool import EncoderPool
from app.lanes import Lanes
from app.settings import Settings
from app.stores.handles import StoreAddress, StoreHandles

#: memory of one process for anchors, decoders and translators, which can be computed again
CACHE_BYTES = 512 * 2**20


def make_services(settings: Settings, *, device: str | None = None) -> Services:
    """Returns the services, without connecting to anything.

    device  the torch device of jobs and models; None: a GPU if possible
    """
    use = device or ("cuda" if torch.cuda.is_available() else "cpu")
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    store = None
    if settings.redis_url is not None:
        store = RedisStore(settings.redis_url, settings.redis_prefix)
    db = make_database(settings)
    return Services(
        db=db,
        blobs=BlobStore(settings.data_dir / "blobs"),
        cache=Cache(CACHE_BYTES, store),
        encoders=EncoderPool(
            _model_sources(settings),
            device=use,
            limit_bytes=settings.model_bytes,
            cores=settings.threads,
        ),
        names=NameCache(away=lambda: db.away),
        lanes=Lanes(),
        limits=Limits(
            vectors=settings.max_vectors,
            pool=settings.max_pool,
            numbers=max(Limits.numbers, ANSWER_NUMBERS_A_VECTOR * settings.max_vectors),
            native_remote=frozenset(
                name for name, entry in settings.stores.items() if entry.remote_texts
            ),
        ),
        native_budget=TextBudget(
            settings.native_texts_a_minute, settings.redis_url, settings.redis_prefix
        ),
        lease_s=settings.lease_s,
        device=use,
        stores=StoreHandles(_store_addresses(settings)),
        heads_dir=settings.heads_dir,
    )


def _store_addresses(settings: Settings) -> dict[str, StoreAddress]:
    return {
        name: StoreAddress(entry.url, frozenset(entry.projects))
        for name, entry in settings.stores.items()
    }


def _model_sources(settings: Settings) -> ModelSources:
    """Returns where models may come from. Raises ValueError for a URL that is not one."""
    remote: dict[str, str | None] = {}
    for entry in _split(settings.remote_urls):
        url, _, key = (
            entry.rpartition("=") if re.search(r"=[A-Za-z_]\w*$", entry) else (entry, "", "")
        )
        remote[normal_url(url)] = key or None
    return ModelSources(settings.models_dir, tuple(_split(settings.hub_models)), remote)


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def make_database(settings: Settings) -> Database:
    return Database(settings.database_url or sqlite_url(settings.data_dir / "anchorage.db"))
