"""`anchorage db`: the schema of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.local import explain_faults, has_usable_key, open_services, read_settings
from app.cli.output import AsJson, print_json

if TYPE_CHECKING:
    from app.context import Services

cli = typer.Typer(
    no_args_is_help=True,
    help="Manage the service's own database: its schema.",
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
    from app.access.service import create_key
    from app.context import RequestContext
    from app.types import Scope

    context = RequestContext("default")
    return create_key(services, context, name="first", scopes=list(Scope))[1]
