"""All commands of `anchorage`."""

from __future__ import annotations

from typing import Annotated

import typer

from app import __version__
from app.cli import database, demo, encoders, keys, migrate, serve, stores, translate

cli = typer.Typer(no_args_is_help=True)
cli.command()(serve.serve)
cli.command()(serve.worker)
cli.command()(translate.translate)
cli.command()(demo.demo)
cli.add_typer(encoders.cli, name="encoders")
cli.add_typer(stores.cli, name="stores")
cli.add_typer(migrate.cli, name="migrate")
cli.add_typer(keys.cli, name="keys")
cli.add_typer(database.cli, name="db")


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
    """Translate embeddings between encoders."""
