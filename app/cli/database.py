"""`anchorage db`: the schema of the database."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.local import explain_faults, has_usable_key, open_services, read_settings
from app.cli.output import AsJson, answer
from app.types import Scope

cli = typer.Typer(no_args_is_help=True, help="Manage the service's own database: its schema.")


@cli.command()
def upgrade(
    first_key: Annotated[bool, typer.Option(help="Create a key if none works.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the database to the schema of this version.

    The command is safe at any time, also when several processes run it at once.
    """
    from app.access.service import create_key
    from app.context import RequestContext

    sentence, key = "The database has the schema of this version.", None
    with explain_faults(), open_services(read_settings()) as services:
        services.db.upgrade()
        if first_key and not has_usable_key(services):
            key = create_key(services, RequestContext("default"), name="first", scopes=[*Scope])[1]
            sentence += f"\nThe first API key, with every scope, is shown only now:\n{key}"
    answer({"schema": "current", "key": key}, sentence, as_json=as_json)
