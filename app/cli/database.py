"""`anchorage db`: the schema of the database, and backups."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.output import AsJson, print_json
from app.cli.shared import (
    explain_faults,
    has_usable_key,
    lock_data_dir,
    open_services,
    read_settings,
)
from app.services.request_context import RequestContext

if TYPE_CHECKING:
    from app.services.context import Services

cli = typer.Typer(
    no_args_is_help=True,
    help="Manage the service's own database: its schema and backups.",
)


@cli.command()
def upgrade(
    first_key: Annotated[
        bool,
        typer.Option(
            help="If no API key works, create one with every scope and print it.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the database to the schema of this version.

    The command is safe at any time, also when several processes run it at once.
    """
    with explain_faults(), open_services(read_settings()) as services:
        services.db.upgrade()
        key = _create_first_key(services) if first_key and not has_usable_key(services) else None
    if as_json:
        print_json({"schema": "current", "key": key})
        return
    typer.echo("The database has the schema of this version.")
    if key is not None:
        typer.echo(f"Created the first API key, with every scope. It is shown only now:\n{key}")


def _create_first_key(services: Services) -> str:
    """Return a new key with every scope."""
    from app.services.access.api_keys import create_key
    from app.types import Scope

    context = RequestContext("default")
    return create_key(services, context, name="first", scopes=list(Scope))[1]


@cli.command()
def backup(
    folder: Annotated[
        Path, typer.Argument(help="A new folder for the rows and the vectors that they name.")
    ],
    as_json: AsJson = False,
) -> None:
    """Write the database and the stored vectors to a folder. The service may run meanwhile."""
    from app.services.upkeep.backup import BackupError, back_up

    with explain_faults(), open_services(read_settings()) as services:
        try:
            copied = back_up(services, folder)
        except BackupError as error:
            raise typer.BadParameter(str(error)) from None
    if as_json:
        print_json(vars(copied))
        return
    typer.echo(f"{copied.rows} rows and {copied.blobs} blobs are in {folder}")
    if copied.lacking:
        typer.secho(
            f"WARNING: {len(copied.lacking)} blobs that rows name are missing in the data dir:",
            fg="yellow",
            err=True,
        )
        typer.echo("\n".join(copied.lacking), err=True)


@cli.command()
def restore(
    folder: Annotated[Path, typer.Argument(help="A folder that `anchorage db backup` wrote.")],
    force: Annotated[
        bool,
        typer.Option(
            help="Replace existing rows, and restore the intact part of a damaged backup."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a backup to the database and the data dir. Stop every API and worker first."""
    from app.services.upkeep.backup import BackupError
    from app.services.upkeep.backup import restore as restore_backup

    settings = read_settings()
    with explain_faults(), lock_data_dir(settings), open_services(settings) as services:
        try:
            copied = restore_backup(services, folder, force=force)
        except BackupError as error:
            raise typer.BadParameter(str(error)) from None
    if as_json:
        print_json(vars(copied))
        return
    typer.echo(
        f"restored {copied.rows} rows and {copied.blobs} blobs; "
        f"{len(copied.lacking)} blobs are lacking"
    )
