"""The `anchorage` command."""

from __future__ import annotations

import typer

from app import __version__
from app.cli import database, demo, keys, serve

cli = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Translate embeddings between encoders."
)
cli.command()(serve.serve)
cli.command()(serve.worker)
cli.command()(database.migrate)
cli.command()(database.backup)
cli.command()(database.restore)
cli.command()(database.downgrade)
cli.command()(demo.demo)
cli.add_typer(keys.cli, name="keys")


@cli.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Run the command: the console script's entry point."""
    cli()
