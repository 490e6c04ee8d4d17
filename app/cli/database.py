"""`anchorage db`: the schema of the database."""

from __future__ import annotations

import typer

from app.cli.local import explain_faults, open_services, read_settings
from app.cli.output import AsJson, answer

cli = typer.Typer(no_args_is_help=True, help="Manage the service's own database: its schema.")


@cli.command()
def upgrade(as_json: AsJson = False) -> None:
    """Bring the database to the schema of this version.

    The command is safe at any time, also when several processes run it at once.
    """
    with explain_faults(), open_services(read_settings()) as services:
        services.db.upgrade()
    answer({"schema": "current"}, "The database has the schema of this version.", as_json=as_json)
