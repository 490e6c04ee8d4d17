"""What several commands share: settings, the data folder, and sentences for faults."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from app.errors import AnchorageError

if TYPE_CHECKING:
    from app.context import Services
    from app.db.session import Database
    from app.settings import Settings

TextField = Annotated[
    str | None,
    typer.Option(
        help="Column or field of the text that was encoded, or a template: {title}: {body}.",
        show_default=False,
    ),
]
VectorField = Annotated[
    str | None,
    typer.Option(help="Column or named vector; default: the only one.", show_default=False),
]

#: the file of a data folder that its service locks, and that says where it listens
LOCK_FILE = "lock"

#: the address of a service that listens on a Unix socket
SOCKET_SCHEME = "unix:"

#: how long a lock may be held by a command that only looks at it
LOCK_S = 0.5


def read_settings(**options: Any) -> Settings:
    """Returns the settings; an option replaces the environment's value.

    Raises typer.BadParameter.
    """
    # Imported here: they take longer than all that a command does which --url spares them.
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
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(f"The data dir cannot be used: {error}") from None
    except ImportError as error:
        raise typer.BadParameter(f"The database cannot be used: {error}") from None
    except AnchorageError as error:
        raise typer.BadParameter(error.detail) from None
    except ValueError as error:  # only the Redis library can tell that an address is wrong
        raise typer.BadParameter(f"A setting cannot be used: {error}") from None
    except Exception as error:
        raise _database_fault(error) from None


def _database_fault(error: Exception) -> Exception:
    """Return what to raise in place of an error; the error itself if the database is not why."""
    from sqlalchemy.exc import SQLAlchemyError  # imported here: it takes as long as all the rest

    from app.db.session import SchemaOutdated

    if isinstance(error, SchemaOutdated):
        return typer.BadParameter(str(error))
    if isinstance(error, SQLAlchemyError):
        return typer.BadParameter(f"The database cannot be used: {error}")
    return error


@contextmanager
def lock_data_dir(settings: Settings) -> Iterator[Callable[[str], None]]:
    """Keep other services out of the data dir; with Redis, services and workers share it.

    Another service would take the first one's jobs for lost. The lock ends with its process.
    Yields a function that announces where this process listens. Raises typer.BadParameter when
    another process holds the folder.
    """
    alone = settings.redis_url is None
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with (settings.data_dir / LOCK_FILE).open("a+") as file:

        def announce(address: str) -> None:
            file.seek(0)
            file.truncate()
            file.write(address)
            file.flush()

        if not _lock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
            raise typer.BadParameter(f"another process uses the data folder {settings.data_dir}")
        if alone:
            announce("")
        yield announce


def service_of(settings: Settings) -> str | None:
    """Return where the service of the data folder listens.

    None: no process uses the folder; "": one does, and has not announced an address.
    """
    try:
        with (settings.data_dir / LOCK_FILE).open() as file:
            return None if _lock(file, fcntl.LOCK_EX, wait_s=0) else file.read()
    except FileNotFoundError:
        return None


def _lock(file: IO[str], kind: int, wait_s: float = LOCK_S) -> bool:
    """Lock a file until it is closed, and return whether that was possible."""
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        else:
            return True


def local_url(address: str) -> str:
    """Return the address at which this machine reaches what listens on all of its addresses."""
    for everywhere in ("0.0.0.0", "localhost"):  # noqa: S104 -- nothing is bound
        address = address.replace(f"//{everywhere}:", "//127.0.0.1:")
    return address.replace("//[::]:", "//[::1]:").replace("//:::", "//[::1]:")


@contextmanager
def open_services(settings: Settings) -> Iterator[Services]:
    """Yields the services, and closes them."""
    from app.ops import logs
    from app.wiring import make_services

    logs.configure(settings.log_format)
    services = make_services(settings)
    try:
        yield services
    finally:
        services.close()


@contextmanager
def open_database() -> Iterator[Services]:
    """Yields the services, if their database has the schema of this version."""
    with explain_faults(), open_services(read_settings()) as services:
        services.db.require_schema()
        yield services


@contextmanager
def open_tables() -> Iterator[Database]:
    """Yields the database alone, without torch, if it has the schema of this version."""
    from app.db.session import Database, sqlite_url

    with explain_faults():
        settings = read_settings()
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        db = Database(settings.database_url or sqlite_url(settings.data_dir / "anchorage.db"))
        try:
            db.require_schema()
            yield db
        finally:
            db.close()


def has_usable_key(services: Services) -> bool:
    """Returns whether any API key works."""
    from app.access import queries as access
    from app.db.tables import now

    with services.db.transaction() as session:
        return access.has_usable_key(session, now=now())


def _setting_error(place: Sequence[int | str], message: str, value: object) -> str:
    """Returns what is wrong with a setting, without a value that is or can hold a secret."""
    secret = str(place[0]).endswith(("_url", "_urls", "_key", "stores"))
    told = f"{'.'.join(map(str, place))}: {message.removeprefix('Value error, ')}"
    return told if secret else f"{told}, not {value}"
