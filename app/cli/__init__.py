"""The `anchorage` command."""

from __future__ import annotations

import typer

from app import __version__
from app.cli import database, demo, keys, reindex, serve, stores, translate

cli = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Translate embeddings between encoders."
)
cli.command()(serve.serve)
cli.command()(serve.worker)
cli.command()(translate.translate)
cli.command()(demo.demo)
cli.add_typer(stores.cli, name="stores")
cli.add_typer(reindex.cli, name="reindex")
cli.add_typer(keys.cli, name="keys")
cli.add_typer(database.cli, name="db")
# The names that these commands had before `anchorage db` existed: scripts may still use them.
cli.command("migrate", hidden=True)(database.upgrade)
cli.command("backup", hidden=True)(database.backup)
cli.command("restore", hidden=True)(database.restore)
cli.command("downgrade", hidden=True)(database.downgrade)


@cli.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Run the command: the console script's entry point."""
    cli()
