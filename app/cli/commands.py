"""All commands of `anchorage`."""

from __future__ import annotations

from typing import Annotated

import typer

from app import __version__
from app.cli import database, demo, encoders, keys, migrate, serve, stores, translate

#: groups of the help, after the commands that change the model of a store
SERVICE, OTHERS = "Run the service", "Files, and a demo"

cli = typer.Typer(no_args_is_help=True)
cli.command(rich_help_panel=SERVICE)(serve.serve)
cli.command(rich_help_panel=SERVICE)(serve.worker)
cli.command(rich_help_panel=OTHERS)(translate.translate)
cli.command(rich_help_panel=OTHERS)(demo.demo)
cli.add_typer(migrate.cli, name="migrate")
cli.add_typer(stores.cli, name="stores")
cli.add_typer(encoders.cli, name="encoders")
cli.add_typer(keys.cli, name="keys", rich_help_panel=SERVICE)
cli.add_typer(database.cli, name="db", rich_help_panel=SERVICE)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@cli.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Move a vector store to a new embedding model: every row gets a new vector."""
