"""The checks of `anchorage doctor` that ask the database, Redis and stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from app.errors import AddressNotListed, AnchorageError, BlobMissing, StorageUnavailable
from app.settings import Settings

if TYPE_CHECKING:
    from app.context import Services
    from app.db.tables import StoreRow

State = Literal["ok", "warning", "failed"]

#: seconds by which the database's clock may differ: a lease lasts 30 s by default
MAX_CLOCK_SKEW_S = 2.0

#: seconds after which a queued job counts as neglected
LONG_QUEUED_S = 60.0

#: kind of encoder -> the module that runs it, and the extra that installs it
ENCODER_PACKAGES = {
    "sentence-transformers": ("sentence_transformers", "text"),
    "timm": ("timm", "vision"),
}


@dataclass(frozen=True)
class DoctorFinding:
    """The result of one check. `advice` says what to do; empty if nothing."""

    check: str
    state: State
    detail: str
    advice: str = ""


def examine_backends(settings: Settings) -> Iterator[DoctorFinding]:
    """Yield what the checks found. Raises ValueError and ImportError for settings of no use."""
    from app.db.session import sqlite_file

    with _services(settings) as services:
        yield _redis(settings, services)
        file = sqlite_file(services.db.url)
        if file is not None and not file.exists():  # to connect would create it
            yield DoctorFinding(
                "database",
                "warning",
                f"There is no database {file} yet.",
                "Start the service, or run `anchorage db upgrade`.",
            )
            return
        database = _database(services)
        yield database
        if database.state == "failed":
            return
        yield _blobs(services)
        yield _keys(settings, services)
        yield _jobs(settings, services)
        yield _encoders(settings, services)
        yield from _stores(services)


@contextmanager
def _services(settings: Settings) -> Iterator[Services]:
    from app.wiring import make_services

    services = make_services(settings, create=False)
    try:
        yield services
    finally:
        services.close()


def _database(services: Services) -> DoctorFinding:
    from app.db.session import SchemaOutdated, is_sqlite

    kind = "SQLite" if is_sqlite(services.db.url) else "PostgreSQL"
    try:
        services.db.ping()
        services.db.require_schema()
        with services.db.engine.connect() as connection:
            their_clock = connection.execute(select(func.current_timestamp())).scalar_one()
    except SchemaOutdated as error:
        return DoctorFinding("database", "failed", str(error), "Run `anchorage db upgrade`.")
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        return DoctorFinding(
            "database",
            "failed",
            f"{kind} does not answer: {cause}",
            "Start it, or correct ANCHORAGE_DATABASE_URL.",
        )
    skew = 0.0 if kind == "SQLite" else _skew_s(their_clock)
    if skew > MAX_CLOCK_SKEW_S:
        return DoctorFinding(
            "database",
            "warning",
            f"{kind} answers, and its clock differs by {skew:.0f} s from this machine's.",
            "Synchronise the clocks; otherwise workers lose their jobs.",
        )
    return DoctorFinding("database", "ok", f"{kind} answers, with the schema of this version.")


def _skew_s(their_clock: Any) -> float:
    from app.db.tables import now

    return float(abs((now() - their_clock).total_seconds()))


def _redis(settings: Settings, services: Services) -> DoctorFinding:
    if settings.redis_url is None:
        several = settings.workers > 1
        return DoctorFinding(
            "redis",
            "failed" if several else "ok",
            "No Redis is set: one process serves, and runs the jobs itself.",
            "Several processes need one: set ANCHORAGE_REDIS_URL." if several else "",
        )
    from redis.exceptions import RedisError

    from app.db.redis import redis_client

    client = redis_client(settings.redis_url)
    try:
        client.ping()
        memory: Any = client.info("memory")
    except (RedisError, OSError) as error:
        return DoctorFinding(
            "redis",
            "failed",
            f"Redis does not answer: {error}",
            "Start it, or correct ANCHORAGE_REDIS_URL.",
        )
    finally:
        client.close()
    store = services.cache.store
    if store is not None and not store.takes_writes():
        return DoctorFinding(
            "redis",
            "failed",
            "Redis answers, but takes no writes: it is full, a replica, or cannot save.",
            "Give it memory and the policy allkeys-lru, or name its primary.",
        )
    policy = memory.get("maxmemory_policy", "")
    if not memory.get("maxmemory") or not str(policy).startswith("allkeys"):
        return DoctorFinding(
            "redis",
            "warning",
            f"Redis answers, with maxmemory {memory.get('maxmemory', 0)} and the policy "
            f"{policy}, so that it can fill its machine or refuse writes.",
            "Set maxmemory, and maxmemory-policy allkeys-lru.",
        )
    return DoctorFinding("redis", "ok", "Redis answers, takes writes and is bounded.")


def _keys(settings: Settings, services: Services) -> DoctorFinding:
    from app.cli.shared import has_usable_key
    from app.main import is_loopback, requires_keys

    if not requires_keys(settings):
        if is_loopback(settings.host):
            return DoctorFinding("keys", "ok", "Clients on this machine need no API key.")
        return DoctorFinding(
            "keys",
            "warning",
            f"Anyone who reaches {settings.host}:{settings.port} can read and delete everything.",
            "Set ANCHORAGE_AUTH=keys, and create a key with `anchorage keys create`.",
        )
    if has_usable_key(services):
        return DoctorFinding("keys", "ok", "Clients need an API key, and there is one.")
    return DoctorFinding(
        "keys",
        "failed",
        "Clients need an API key, and none works.",
        "Run `anchorage keys create --name first --scope admin`.",
    )


def _jobs(settings: Settings, services: Services) -> DoctorFinding:
    from app.ops.database_metrics import read_metrics

    metrics = read_metrics(services)
    queued, running = metrics.jobs.get("queued", 0), metrics.jobs.get("running", 0)
    detail = f"{queued} jobs wait and {running} run."
    if queued and not running and metrics.oldest_queued_s > LONG_QUEUED_S:
        start = "`anchorage worker`" if settings.redis_url else "`anchorage serve`"
        return DoctorFinding(
            "jobs",
            "failed",
            f"{detail} The oldest has waited for {metrics.oldest_queued_s:,.0f} s.",
            f"No worker takes them: start {start} with the same settings.",
        )
    return DoctorFinding("jobs", "ok", detail)


def _blobs(services: Services) -> DoctorFinding:
    from app.db import resources

    with services.db.transaction() as session:
        named = resources.named_blobs(session)
    lacking = [name for name in named if not services.blobs.has(name)]
    if not lacking:
        return DoctorFinding(
            "blobs", "ok", f"The data dir has all files of vectors that rows name: {len(named)}."
        )
    return DoctorFinding(
        "blobs",
        "failed",
        f"{len(lacking)} of {len(named)} files of vectors that the database names are missing in "
        f"{services.blobs.root}.",
        "Mount the disk, or set ANCHORAGE_DATA_DIR to the folder of the service; if they are "
        "lost, restore a backup of the folder.",
    )


def _encoders(settings: Settings, services: Services) -> DoctorFinding:
    from app.db import tables

    with services.db.transaction() as session:
        rows = session.scalars(select(tables.EncoderRow).order_by(tables.EncoderRow.name)).all()
    kinds = {row.kind for row in rows}
    detail = f"{len(rows)} encoders are registered."
    for kind, (module, extra) in ENCODER_PACKAGES.items():
        if kind in kinds and find_spec(module) is None:
            return DoctorFinding(
                "encoders",
                "failed",
                f"Encoders of the kind {kind} cannot run: the package is not installed.",
                f"Run `pip install 'anchorage-server[{extra}]'`.",
            )
    if settings.models_dir is not None and not settings.models_dir.is_dir():
        return DoctorFinding(
            "encoders",
            "failed",
            f"The folder of models {settings.models_dir} does not exist.",
            "Create it, or correct ANCHORAGE_MODELS_DIR.",
        )
    if changed := [row.name for row in rows if row.has_changed]:
        return DoctorFinding(
            "encoders",
            "warning",
            f"{detail} They make other vectors than those of their anchors: {', '.join(changed)}.",
            f"Run `anchorage encoders check {changed[0]}`, which says what to do.",
        )
    return DoctorFinding("encoders", "ok", detail)


def _stores(services: Services) -> list[DoctorFinding]:
    from app.db import tables

    with services.db.transaction() as session:
        rows = session.scalars(select(tables.StoreRow).order_by(tables.StoreRow.name)).all()
    return [_store(services, row) for row in rows]


def _store(services: Services, row: StoreRow) -> DoctorFinding:
    """Whether a store answers, and holds vectors of its encoder only. Reads it once."""
    from app.stores.hidden_urls import hide_url
    from app.stores.service import describe_mixture, examine_store

    try:
        report = examine_store(services, row)
    except AddressNotListed as error:
        advice = "Add the address, or delete the store."
        return DoctorFinding("stores", "failed", f"{row.name}: {error.detail}", advice)
    except (BlobMissing, StorageUnavailable) as error:
        detail = f"The vectors of {row.name} were not compared with the anchors: {error.detail}"
        return DoctorFinding("stores", "warning", detail, "Repeat the check.")
    except AnchorageError as error:
        detail = f"{row.name}: {hide_url(error.detail, services.stores.location(row).url)}"
        advice = f"Check the address {row.address!r} in ANCHORAGE_STORES."
        return DoctorFinding("stores", "failed", detail, advice)
    detail = f"{row.name} has {report.facts.rows:,} rows."
    mixture = describe_mixture(report.space, report.foreign, row.encoder.name)
    if mixture is None:
        return DoctorFinding("stores", "ok", detail)
    advice = f"Embed such rows again with {row.encoder.name}."
    return DoctorFinding("stores", "warning", f"{detail} {mixture}.", advice)
