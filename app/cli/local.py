"""What commands on the service's machine share: settings, data folder, database and faults."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from app.errors import AnchorageError

if TYPE_CHECKING:
    from app.context import Services
    from app.settings import Settings

#: the file of a data folder that its service locks
LOCK_FILE = "lock"

#: how long a service waits for the one before it to end
LOCK_S = 0.5


def read_settings(**options: Any) -> Settings:
    """Returns the settings; an option replaces the environment's value.

    Raises typer.BadParameter.
    """
    # Imported here: a command that talks to a service does without them.
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from app.settings import Settings

    # Before torch is loaded: threads that spin while they wait make a busy machine much slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # numpy only multiplies single rows: a second thread would spin for longer than that takes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        return Settings(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        sentences = (
            _setting_error(item["loc"], item["msg"], item["input"]) for item in error.errors()
        )
        raise typer.BadParameter("; ".join(sentences)) from None
    except SettingsError:  # only this setting is JSON, and its text may hold a password
        raise typer.BadParameter(
            "ANCHORAGE_STORES is not JSON. Write it as "
            """'{"main": "postgresql://user:password@host/name"}'."""
        ) from None


@contextmanager
def explain_faults() -> Iterator[None]:
    """Turn faults of the disk, the database and the settings into typer.BadParameter."""
    from sqlalchemy.exc import SQLAlchemyError

    from app.db.session import SchemaOutdated

    try:
        yield
    except OSError as error:
        raise typer.BadParameter(f"The data dir cannot be used: {error}") from None
    except SchemaOutdated as error:
        raise typer.BadParameter(str(error)) from None
    except (ImportError, SQLAlchemyError) as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        said = "The database cannot be used. Start it, or correct ANCHORAGE_DATABASE_URL"
        raise typer.BadParameter(f"{said}: {cause}") from None
    except AnchorageError as error:
        raise typer.BadParameter(error.detail) from None
    except ValueError as error:  # only the Redis library can tell that an address is wrong
        raise typer.BadParameter(f"A setting cannot be used: {error}") from None


@contextmanager
def lock_data_dir(settings: Settings) -> Iterator[None]:
    """Keep other services out of the data dir; with Redis, services and workers share it.

    Another service would take the first one's jobs for lost. The lock ends with its process.
    Raises typer.BadParameter when another process holds the folder.
    """
    kind = fcntl.LOCK_EX if settings.redis_url is None else fcntl.LOCK_SH
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with (settings.data_dir / LOCK_FILE).open("a") as file:
        until = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise typer.BadParameter(
                        f"another process uses the data folder {settings.data_dir}"
                    ) from None
                time.sleep(0.05)
        yield


@contextmanager
def open_services(settings: Settings) -> Iterator[Services]:
    """Yields the services, and closes them."""
    from app.ops import logs
    from app.wiring import make_services

    logs.configure()
    services = make_services(settings)
    try:
        yield services
    finally:
        services.close()


@contextmanager
def open_database(*, make: bool = False) -> Iterator[Services]:
    """Yields the services, if their database has the schema of this version; `make` makes one that
    does not exist yet.
    """
    with explain_faults(), open_services(read_settings()) as services:
        if make and not services.db.revisions():
            services.db.upgrade()
        services.db.require_schema()
        yield services


def has_usable_key(services: Services) -> bool:
    """Returns whether any API key works."""
    from app.access import queries as access
    from app.db.tables import now

    with services.db.transaction() as session:
        return access.has_usable_key(session, now=now())


def _setting_error(place: Sequence[int | str], message: str, value: object) -> str:
    """Returns what is wrong with a setting, without a value that is or can hold a secret."""
    secret = str(place[0]).endswith(("_url", "_urls", "_key", "stores"))
    what = f"{'.'.join(map(str, place))}: {message.removeprefix('Value error, ')}"
    return what if secret else f"{what}, not {value}"
