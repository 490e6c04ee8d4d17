"""The `anchorage` command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from app import __version__
from app.demo import SENTENCE, DemoError
from app.errors import AnchorageError
from app.settings import Settings
from app.storage.queries import access
from app.types import LONGEST_GRACE_S

if TYPE_CHECKING:
    from app.services.context import Services

cli = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Translate embeddings between encoders."
)
keys_cli = typer.Typer(
    no_args_is_help=True,
    help="API keys: who may call, for which project. Reads the database itself.",
)
cli.add_typer(keys_cli, name="keys")

#: columns of `keys list`
KEY_COLUMNS = ("id", "project", "name", "scopes", "expires", "last used", "state")


@cli.command()
def serve(
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on; 127.0.0.1 unless set", show_default=False),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; 8080 unless set", show_default=False)
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where SQLite and the blobs are kept; .anchorage unless set", show_default=False
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes that answer requests; 1 unless set. More need Redis", show_default=False
        ),
    ] = None,
) -> None:
    """Run the service. Alone it needs nothing: SQLite and blobs below the data dir, jobs in its own process.

    With ANCHORAGE_REDIS_URL, workers (`anchorage worker`) run the jobs. Every setting is an environment variable,
    ANCHORAGE_PORT for one (docs/settings.md); an option here wins.
    """
    settings = _settings(host=host, port=port, data_dir=data_dir, workers=workers)
    if settings.workers > 1 and settings.redis_url is None:
        raise typer.BadParameter(
            "several processes share what they know in Redis: set ANCHORAGE_REDIS_URL"
        )
    # Loading torch takes seconds: not before the options are known to be right, and not for --help.
    from app import server
    from app.main import asks_for_keys, create_app, is_loopback

    with _storage_trouble(), _alone(settings):
        application = create_app(settings)
        services = application.state.services
        services.db.migrate()
        if asks_for_keys(settings):
            _require_a_key(services, settings)
        elif not is_loopback(settings.host):
            typer.secho(
                f"WARNING: listening on {settings.host} without API keys, as ANCHORAGE_AUTH=none says: anyone who reaches this "
                "port can read and delete everything.",
                fg="yellow",
                err=True,
            )
        listening = server.bind(settings)
        if settings.workers == 1:
            server.run(settings, application, listening)
        else:
            services.close()
            server.run_several(settings, listening)


@cli.command()
def worker() -> None:
    """Run jobs: one process for each device, until SIGTERM. Needs the API's database, PostgreSQL, and its data dir."""
    settings = _settings()
    from workers.processes import NotShared, main

    with _storage_trouble():
        try:
            status = main(settings)
        except (NotShared, ValueError) as error:
            raise typer.BadParameter(str(error)) from None
    raise typer.Exit(status)


@cli.command()
def migrate(
    first_key: Annotated[
        bool,
        typer.Option(
            help="If there is no usable API key at all, make one with every scope and print it."
        ),
    ] = False,
) -> None:
    """Bring the database to this version's schema. Safe to run at any time, and by several at once."""
    with _storage_trouble(), _services(_settings()) as services:
        services.db.migrate()
        typer.echo("the database is at this version's schema")
        if first_key and not _any_key(services):
            from app.services.access.api_keys import create_key
            from app.types import Scope

            _, key = create_key(services, "default", name="first", scopes=list(Scope))
            typer.echo(f"no API key yet: made one with every scope, shown this once:\n{key}")


@cli.command()
def backup(
    folder: Annotated[
        Path, typer.Argument(help="A new folder: for the rows, and for the vectors they name.")
    ],
) -> None:
    """Write the database and the stored vectors to a folder, while the service runs."""
    from app.services.upkeep.backup import BackupError, back_up

    with _storage_trouble(), _services(_settings()) as services:
        try:
            copied = back_up(services, folder)
        except BackupError as error:
            raise typer.BadParameter(str(error)) from None
    typer.echo(f"{copied.rows} rows and {copied.blobs} blobs are in {folder}")
    if copied.lacking:
        typer.secho(
            f"WARNING: the service itself lacks {len(copied.lacking)} blobs that rows name:",
            fg="yellow",
            err=True,
        )
        typer.echo("\n".join(copied.lacking), err=True)


@cli.command()
def restore(
    folder: Annotated[Path, typer.Argument(help="What `anchorage backup` wrote.")],
    force: Annotated[
        bool,
        typer.Option(
            help="Replace the rows that are there, and restore what a damaged backup has."
        ),
    ] = False,
) -> None:
    """Put a backup into the database and the data dir of the settings. Stop every API and worker first."""
    from app.services.upkeep.backup import BackupError
    from app.services.upkeep.backup import restore as restore_backup

    settings = _settings()
    with _storage_trouble(), _alone(settings), _services(settings) as services:
        try:
            copied = restore_backup(services, folder, force=force)
        except BackupError as error:
            raise typer.BadParameter(str(error)) from None
    typer.echo(
        f"restored {copied.rows} rows and {copied.blobs} blobs; {len(copied.lacking)} blobs are lacking"
    )


@cli.command()
def downgrade(
    revision: Annotated[
        str,
        typer.Argument(
            help="The older version's schema: the number of its newest migration, like 0006."
        ),
    ],
) -> None:
    """Bring the database back to an older version's schema, before that version is installed.

    Stop every API and worker first. What only the newer schema can hold is lost.
    """
    from alembic import command
    from alembic.util import CommandError

    from app.services.upkeep.backup import BackupError, require_alone
    from app.storage.db import alembic_config

    settings = _settings()
    with _storage_trouble(), _alone(settings), _services(settings) as services:
        try:
            require_alone(services.db)
            command.downgrade(alembic_config(services.db.url), revision)
        except (BackupError, CommandError) as error:
            raise typer.BadParameter(f"the schema stays as it is: {error}") from None
    typer.echo(f"the database is at revision {revision}: install the version that it belongs to")


@keys_cli.command("create")
def create(
    name: Annotated[str, typer.Option(help="What the key is for.")],
    project: Annotated[
        str, typer.Option(help="Whose encoders, anchor sets and heads it sees.")
    ] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(help="read, write or admin: each includes the ones before it."),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(
            min=1, max=36_500, help="Days until it expires; never unless set.", show_default=False
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="Like 600/minute; the server's unless set.", show_default=False),
    ] = None,
) -> None:
    """Make a key and print it, once."""
    from app.services.access.api_keys import create_key
    from app.storage.tables import now
    from app.types import Scope

    wrong = [item for item in scope or [] if item not in list(Scope)]
    if wrong:
        raise typer.BadParameter(f"there is no scope {wrong[0]!r}: read, write or admin")
    if not project.strip() or not project.isprintable() or len(project) > 100:
        raise typer.BadParameter("a project has a name of 1 to 100 printable characters")
    with _migrated(_settings()) as services:
        expires_at = None if days is None else now() + timedelta(days=days)
        scopes = [Scope(item) for item in scope or [Scope.read]]
        row, key = create_key(
            services, project, name=name, scopes=scopes, expires_at=expires_at, rate_limit=rate
        )
    typer.echo(
        f"{row.id} for project {project}, {', '.join(row.scopes)}; shown this once:", err=True
    )
    typer.echo(key)


@keys_cli.command("list")
def list_keys(
    project: Annotated[
        str | None, typer.Option(help="Of one project only.", show_default=False)
    ] = None,
) -> None:
    """The keys, without their secrets."""
    from app.storage.tables import now

    with _migrated(_settings()) as services, services.db.transaction() as session:
        rows = access.api_keys(session, project)
    shown = []
    for row in rows:
        expired = row.expires_at is not None and row.expires_at <= now()
        state = "revoked" if row.revoked_at else "expired" if expired else "works"
        used = f"{row.last_used_at:%Y-%m-%d %H:%M}" if row.last_used_at else "never"
        expires = f"{row.expires_at:%Y-%m-%d %H:%M}" if row.expires_at else "never"
        shown.append((row.id, row.project, row.name, ", ".join(row.scopes), expires, used, state))
    _print_columns([KEY_COLUMNS, *shown])


@keys_cli.command("rotate")
def rotate(
    key_id: str,
    grace: Annotated[
        int,
        typer.Option(min=0, max=LONGEST_GRACE_S, help="Seconds for which the old key still works."),
    ] = 0,
) -> None:
    """Make a key with the same rights, and end this one."""
    from app.services.access.api_keys import rotate_key

    with _migrated(_settings()) as services:
        _, key = rotate_key(services, _project_of(services, key_id), key_id, grace_s=grace)
    typer.echo(key)


@keys_cli.command("revoke")
def revoke(key_id: str) -> None:
    """End a key: running servers notice within two seconds."""
    from app.services.access.api_keys import revoke_key

    with _migrated(_settings()) as services:
        revoke_key(services, _project_of(services, key_id), key_id)
    typer.echo(f"{key_id} is revoked")


@cli.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo-output"),
    json: Annotated[
        Path | None, typer.Option(help="Also write the numbers here.", show_default=False)
    ] = None,
    sentence: Annotated[
        str,
        typer.Option(
            help="Encoded with all-MiniLM-L6-v2 and searched for in the index of another encoder."
        ),
    ] = SENTENCE,
    url: Annotated[
        str | None,
        typer.Option(
            help="A running service to use, which must be empty of the demo's names; else one is started.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            envvar="ANCHORAGE_API_KEY",
            help="That service's API key, with the scope write.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Translate 1,810 real sentences between three encoders over HTTP, and say how good that is. Under a minute, offline."""
    from app.demo import run

    try:
        run.demo(out=out, json_path=json, sentence=sentence, url=url, key=key)
    except DemoError as error:
        typer.secho(f"the demo stopped: {error}", fg="red", err=True)
        raise typer.Exit(1) from None


@cli.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """The console script."""
    cli()


def _settings(**given: Any) -> Settings:
    """The settings, those given on the command line over the environment's; and logs as they say."""
    from app.observability import logs

    # Before torch is loaded: threads that spin while they wait for each other make a busy machine several times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # numpy multiplies single rows only: a second thread would spin longer than that takes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        wrong = "; ".join(
            _wrong(item["loc"][0], item["msg"], item["input"]) for item in error.errors()
        )
        raise typer.BadParameter(wrong) from None
    logs.configure(settings.log_format)
    return settings


def _wrong(setting: object, message: str, given: object) -> str:
    """What is wrong with a setting. An address may hold a password: it is not shown."""
    return f"{setting}: {message}" + ("" if str(setting).endswith("_url") else f", not {given}")


@contextmanager
def _storage_trouble() -> Iterator[None]:
    """Say what is wrong with disk or database in a sentence."""
    from app.storage.db import SchemaOutdated

    try:
        yield
    except OSError as error:
        raise typer.BadParameter(f"the data dir cannot be used: {error}") from None
    except (SQLAlchemyError, ImportError) as error:
        raise typer.BadParameter(f"the database cannot be used: {error}") from None
    except AnchorageError as error:
        raise typer.BadParameter(error.detail) from None
    except SchemaOutdated as error:
        raise typer.BadParameter(str(error)) from None
    except ValueError as error:  # an address of Redis that only its library can tell is none
        raise typer.BadParameter(f"a setting cannot be used: {error}") from None


@contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """An embedded service has its data dir to itself; one with Redis shares it with its workers."""
    from app.storage.folder_lock import FolderHeld, exclusive

    if settings.redis_url is not None:
        yield
        return
    try:
        with exclusive(settings.data_dir):
            yield
    except FolderHeld as error:
        raise typer.BadParameter(str(error)) from None


@contextmanager
def _services(settings: Settings) -> Iterator[Services]:
    from app.wiring import make_services

    services = make_services(settings)
    try:
        yield services
    finally:
        services.close()


@contextmanager
def _migrated(settings: Settings) -> Iterator[Services]:
    """The services, once it is known that their database has this version's schema."""
    with _storage_trouble(), _services(settings) as services:
        services.db.require_schema()
        yield services


def _project_of(services: Services, key_id: str) -> str:
    """Whose key it is: on the command line, ids say it all. Raises ApiKeyNotFound."""

    with services.db.transaction() as session:
        return access.api_key(session, None, key_id).project


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    """One line a row, however narrow the terminal: lines can be searched and cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _any_key(services: Services) -> bool:
    from app.storage.tables import now

    with services.db.transaction() as session:
        return access.has_usable_key(session, now=now())


def _require_a_key(services: Services, settings: Settings) -> None:
    """Refuse to listen where nobody could call."""
    if not _any_key(services):
        where = settings.data_dir if settings.database_url is None else "its database"
        raise typer.BadParameter(
            f"listening on {settings.host} asks callers for API keys, and {where} "
            "has none yet. Make one with `anchorage keys create --name first --scope admin` and the same ANCHORAGE_ variables, "
            "or say ANCHORAGE_AUTH=none to let everyone in"
        )


if __name__ == "__main__":
    main()
