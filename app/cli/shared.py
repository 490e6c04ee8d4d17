"""What several commands share: settings, services, and sentences for faults of the machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError
from pydantic_settings import SettingsError
from sqlalchemy.exc import SQLAlchemyError

from app.errors import AnchorageError
from app.settings import Settings

if TYPE_CHECKING:
    from app.services.context import Services

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

Model = TypeVar("Model", bound=BaseModel)


def read_settings(**options: Any) -> Settings:
    """Returns the settings, and configures logs; an option replaces the environment's value.

    Raises typer.BadParameter.
    """
    from app.observability import logs

    # Before torch is loaded: threads that spin while they wait make a busy machine much slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # numpy only multiplies single rows: a second thread would spin for longer than that takes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        settings = Settings(**{name: value for name, value in options.items() if value is not None})
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
    logs.configure(settings.log_format)
    return settings


@contextmanager
def explain_faults() -> Iterator[None]:
    """Turn faults of the disk, the database and the settings into typer.BadParameter."""
    from app.storage.db import SchemaOutdated

    try:
        yield
    except OSError as error:
        raise typer.BadParameter(f"The data dir cannot be used: {error}") from None
    except (SQLAlchemyError, ImportError) as error:
        raise typer.BadParameter(f"The database cannot be used: {error}") from None
    except AnchorageError as error:
        raise typer.BadParameter(error.detail) from None
    except SchemaOutdated as error:
        raise typer.BadParameter(str(error)) from None
    except ValueError as error:  # only the Redis library can tell that an address is wrong
        raise typer.BadParameter(f"A setting cannot be used: {error}") from None


@contextmanager
def lock_data_dir(settings: Settings) -> Iterator[None]:
    """Keep other services out of the data dir; with Redis, services and workers share it.

    Another service would take the first one's jobs for lost. The lock ends with its process. Raises
    typer.BadParameter when another process holds the folder.
    """
    if settings.redis_url is not None:
        yield
        return
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with (settings.data_dir / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise typer.BadParameter(
                f"another process uses the data folder {settings.data_dir}"
            ) from None
        yield


@contextmanager
def open_services(settings: Settings) -> Iterator[Services]:
    """Yields the services, and closes them."""
    from app.wiring import make_services

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


def has_usable_key(services: Services) -> bool:
    """Returns whether any API key works."""
    from app.storage.queries import access
    from app.storage.tables import now

    with services.db.transaction() as session:
        return access.has_usable_key(session, now=now())


def validate(model: type[Model], **values: Any) -> Model:
    """Returns a body of the API with the values that are not None. Raises typer.BadParameter."""
    try:
        return model(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        wrong = (f"{item['loc'][0]}: {item['msg']}" for item in error.errors())
        raise typer.BadParameter("; ".join(wrong)) from None


def _setting_error(place: Sequence[int | str], message: str, value: object) -> str:
    """Returns what is wrong with a setting, without a value that is or can hold a secret."""
    secret = str(place[0]).endswith(("_url", "_urls", "_key", "stores"))
    told = f"{'.'.join(map(str, place))}: {message.removeprefix('Value error, ')}"
    return told if secret else f"{told}, not {value}"
