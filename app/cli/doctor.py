"""`anchorage doctor`: checks a deployment, and says what to do."""

from __future__ import annotations

import difflib
import logging
import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import httpx2
import typer

from app import __version__
from app.cli.local import has_usable_key, open_services, read_settings
from app.cli.output import AsJson, print_json
from app.cli.service import DEFAULT_URL, Url

if TYPE_CHECKING:
    from app.context import Services
    from app.settings import Settings

#: the colour of each state
COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}

#: variables of the command line, of tests and of benchmarks, which are not settings
OTHER_VARIABLES = {
    "ANCHORAGE_URL",
    "ANCHORAGE_API_KEY",
    "ANCHORAGE_BENCHMARK_CACHE",
    "ANCHORAGE_DATA",
}

#: free disk below which a check warns, and fails
FEW_BYTES, TOO_FEW_BYTES = 5 * 2**30, 2**28

#: seconds after which a queued job counts as neglected
LONG_QUEUED_S = 60.0

#: seconds for which the service may be silent
URL_ANSWER_S = 5.0


class Problem(Exception):
    """What a check found, and what to do about it."""

    def __init__(self, detail: str, advice: str, state: str = "failed") -> None:
        super().__init__(detail)
        self.advice, self.state = advice, state


def doctor(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Check the settings, the disk, the database, Redis, files, jobs, stores and the service.

    Start it with the ANCHORAGE_ variables of the service. It changes no data. The exit code is 1 if
    a check failed; warnings do not count.
    """
    settings = read_settings()
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    checks: list[dict[str, str]] = []

    def check(name: str, look: Callable[[], str]) -> bool:
        try:
            found = {"state": "ok", "detail": look(), "advice": ""}
        except Problem as problem:
            found = {"state": problem.state, "detail": str(problem), "advice": problem.advice}
        checks.append({"check": name, **found})
        return found["state"] == "ok"

    check("settings", _variables)
    check("service", partial(_service, url))
    if check("data dir", partial(_data_dir, settings)):
        try:
            with open_services(settings, create=False) as services:
                check("redis", partial(_redis, services))
                if check("database", partial(_database, services)):
                    check("keys", partial(_keys, settings, services))
                    for name, look in (("files", _files), ("jobs", _jobs), ("stores", _stores)):
                        check(name, partial(look, services))
        except (ValueError, ImportError) as error:
            wrong = {"detail": str(error), "advice": "Correct this setting, and try again."}
            checks.append({"check": "settings", "state": "failed", **wrong})
    failed = any(each["state"] == "failed" for each in checks)
    if as_json:
        print_json({"ok": not failed, "checks": checks})
    else:
        for each in checks:
            state = typer.style(f"{each['state']:7}", fg=COLOURS[each["state"]])
            typer.echo(f"{state}  {each['check']:8}  {each['detail']} {each['advice']}".rstrip())
    raise typer.Exit(1 if failed else 0)


def _variables() -> str:
    from app.settings import Settings

    known = {f"ANCHORAGE_{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES
    given = sorted(name for name in os.environ if name.upper().startswith("ANCHORAGE_"))
    for name in given:
        if name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            advice = f"Did you mean {near[0]}?" if near else "Remove it."
            raise Problem(f"{name} is no setting.", advice, "warning")
    return f"{len(given)} ANCHORAGE_ variables are set."


def _data_dir(settings: Settings) -> str:
    folder = settings.data_dir
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        advice = "Let this user write to it, or set ANCHORAGE_DATA_DIR to another folder."
        raise Problem(f"This user cannot write to {existing}.", advice)
    free = shutil.disk_usage(existing).free
    detail = f"The disk of {folder} has {free / 2**30:,.1f} GiB free."
    if free < FEW_BYTES:
        state = "failed" if free < TOO_FEW_BYTES else "warning"
        raise Problem(detail, "Make room, or use a larger disk.", state)
    return detail


def _redis(services: Services) -> str:
    store = services.cache.store
    if store is None:
        return "No Redis is set: one process serves, and runs the jobs itself."
    if not store.takes_writes():
        advice = "Start it, correct ANCHORAGE_REDIS_URL, or set maxmemory-policy allkeys-lru."
        raise Problem("Redis is away, or takes no writes: full, a replica, unable to save.", advice)
    return "Redis answers and takes writes."


def _database(services: Services) -> str:
    from sqlalchemy.exc import SQLAlchemyError

    from app.db.session import SchemaOutdated, sqlite_file

    file = sqlite_file(services.db.url)
    if file is not None and not file.exists():  # to connect would create it
        advice = "Start the service, or run `anchorage db upgrade`."
        raise Problem(f"There is no database {file} yet.", advice, "warning")
    try:
        services.db.require_schema()
    except SchemaOutdated as error:
        raise Problem(str(error), "Run `anchorage db upgrade`.") from None
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        advice = "Start it, or correct ANCHORAGE_DATABASE_URL."
        raise Problem(f"The database does not answer: {cause}", advice) from None
    return "The database answers, with the schema of this version."


def _keys(settings: Settings, services: Services) -> str:
    from app.main import is_loopback, requires_keys

    if not requires_keys(settings):
        if is_loopback(settings.host):
            return "Clients on this machine need no API key."
        detail = f"Anyone who reaches {settings.host} can read and delete everything."
        raise Problem(detail, "Set ANCHORAGE_AUTH=keys, and create a key.", "warning")
    if not has_usable_key(services):
        advice = "Run `anchorage keys create --name first --scope admin`."
        raise Problem("Clients need an API key, and none works.", advice)
    return "Clients need an API key, and there is one."


def _files(services: Services) -> str:
    from app.ops.retention import named_blobs

    with services.db.transaction() as session:
        named = named_blobs(session)
    if lacking := sum(not services.blobs.has(name) for name in named):
        raise Problem(
            f"{lacking} of {len(named)} files of vectors are missing in {services.blobs.root}.",
            "Mount the disk, or set ANCHORAGE_DATA_DIR to the folder of the service; if they are "
            "lost, restore a backup of the folder.",
        )
    return f"The data dir has all files of vectors: {len(named)}."


def _jobs(services: Services) -> str:
    from app.ops.database_metrics import read_metrics

    metrics = read_metrics(services)
    queued, running = metrics.jobs.get("queued", 0), metrics.jobs.get("running", 0)
    detail = f"{queued} jobs wait and {running} run."
    if queued and not running and metrics.oldest_queued_s > LONG_QUEUED_S:
        advice = "Nothing takes them: start `anchorage worker`, or without Redis `anchorage serve`."
        raise Problem(detail, advice)
    return detail


def _stores(services: Services) -> str:
    from sqlalchemy import select

    from app.db.tables import StoreRow

    with services.db.transaction() as session:
        rows = session.scalars(select(StoreRow).order_by(StoreRow.name)).all()
    if lost := [row for row in rows if row.address not in services.stores.addresses]:
        named = ", ".join(f"{row.name} has the address {row.address!r}" for row in lost)
        raise Problem(f"Stores lack a listed address: {named}.", "Add each to ANCHORAGE_STORES.")
    return f"The addresses of all {len(rows)} stores are listed."


def _service(url: str) -> str:
    try:
        with httpx2.Client(base_url=url, timeout=URL_ANSWER_S) as client:
            version = client.get("/livez").json()["version"]
            status = client.get("/readyz").json()["status"]
    except httpx2.HTTPError as error:
        advice = "Start it with `anchorage serve`, or give its address with --url."
        state = "warning" if url == DEFAULT_URL else "failed"
        raise Problem(f"No service answers at {url}: {error}", advice, state) from None
    except (ValueError, KeyError, TypeError):
        detail = f"What answers at {url} is another program, and not Anchorage."
        raise Problem(detail, "Give the address of the service with --url.") from None
    if status != "ok":
        state = "failed" if status == "unavailable" else "warning"
        raise Problem(f"The service at {url} is {status}.", "See the other checks.", state)
    if version != __version__:
        detail = f"The service at {url} has version {version}, and this command {__version__}."
        raise Problem(detail, "Restart it after an upgrade.", "warning")
    return f"The service at {url} is ready."
