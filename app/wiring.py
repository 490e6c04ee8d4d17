"""Makes services from settings, for the API, the worker and the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from app.encoders.base import ModelSources
from app.encoders.hosting.addresses import HostAddress
from app.encoders.hosting.client import ModelHosts
from app.encoders.pool import EncoderPool
from app.encoders.remote.options import normal_url
from app.services.context import (
    ANSWER_NUMBERS_A_VECTOR,
    Limits,
    Retention,
    Services,
    TranslationDevice,
)
from app.services.lanes import Lanes
from app.services.serving.translation_devices import HostDevice, OwnDevice
from app.settings import Settings
from app.storage.blobs import BlobStore
from app.storage.cache import Cache, RedisStore
from app.storage.db import Database, is_sqlite, sqlite_url
from app.storage.name_cache import NameCache
from app.storage.redis import OptionalRedis, redis_client
from app.storage.wakeup import LocalWakeup, RedisWakeup
from app.stores.addresses import StoreAddress


def make_services(
    settings: Settings, *, device: str | None = None, create: bool = True
) -> Services:
    """Returns the services, without connecting to anything.

    device  the torch device of jobs and models; None: a GPU if possible, or with model hosts the
            CPU
    create  whether to create the data dir
    """
    hosts = None if device else _model_hosts(settings)
    use = device or ("cuda" if hosts is None and torch.cuda.is_available() else "cpu")
    if create:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    store = None
    if settings.redis_url is not None:
        store = RedisStore(OptionalRedis(settings.redis_url), settings.redis_prefix)
    db = make_database(settings)
    pool = make_encoder_pool(settings, use, hosts=hosts)
    return Services(
        db=db,
        blobs=BlobStore(settings.data_dir / "blobs", create=create),
        cache=Cache(settings.cache_bytes, store),
        encoders=pool,
        names=NameCache(
            alone=settings.redis_url is None and is_sqlite(db.url), away=lambda: db.away
        ),
        lanes=Lanes(),
        limits=Limits(
            vectors=settings.max_vectors,
            pool=settings.max_pool,
            numbers=max(Limits.numbers, ANSWER_NUMBERS_A_VECTOR * settings.max_vectors),
            jobs=settings.max_jobs,
            project_jobs=settings.max_project_jobs,
        ),
        lease_s=settings.lease_s,
        retention=Retention(
            jobs_days=settings.keep_jobs_days,
            audit_days=settings.keep_audit_days,
            translators_days=settings.keep_translators_days,
        ),
        device=use,
        translation_device=_translation_device(pool, hosts),
        store_addresses=_store_addresses(settings),
    )


def make_encoder_pool(
    settings: Settings, device: str, hosts: ModelHosts | None = None
) -> EncoderPool:
    return EncoderPool(
        _model_sources(settings),
        device=device,
        limit_bytes=settings.model_bytes,
        cores=settings.encode_cores or settings.threads,
        hosts=hosts,
    )


def _translation_device(pool: EncoderPool, hosts: ModelHosts | None) -> TranslationDevice | None:
    """Returns what translates many vectors faster than the CPU."""
    if hosts is not None:
        return HostDevice(hosts)
    return None if pool.device == "cpu" else OwnDevice(pool)


def _model_hosts(settings: Settings) -> ModelHosts | None:
    """Returns the processes that run models for this one. Raises ValueError."""
    addresses = [HostAddress.parse(each) for each in _split(settings.encode_at)]
    return ModelHosts(addresses, encode_key(settings, addresses)) if addresses else None


def encode_key(settings: Settings, addresses: Sequence[HostAddress]) -> bytes:
    """Returns what model hosts and their clients must both know.

    Raises ValueError for an address on a network without a key. Only this user can open a socket
    in a folder.
    """
    if settings.encode_key is None and any(address.path is None for address in addresses):
        raise ValueError(
            "a model host at tcp:// needs a key: set ANCHORAGE_ENCODE_KEY to the same secret, of "
            "at least 16 characters, for the API and for its model hosts"
        )
    return (settings.encode_key or "").encode()


def _store_addresses(settings: Settings) -> dict[str, StoreAddress]:
    return {
        name: StoreAddress(entry)
        if isinstance(entry, str)
        else StoreAddress(entry.url, None if entry.projects is None else frozenset(entry.projects))
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


def make_wakeup(settings: Settings) -> LocalWakeup:
    """Returns what wakes idle workers: in all processes with Redis, otherwise in this one."""
    if settings.redis_url is None:
        return LocalWakeup()
    return RedisWakeup(redis_client(settings.redis_url), settings.redis_prefix)
