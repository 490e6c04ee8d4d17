"""All commands of `anchorage`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from app import __version__
from app.cli import (
    anchors,
    database,
    demo,
    encoders,
    keys,
    migrate,
    search,
    serve,
    stores,
    translate,
)

#: groups of the help, after the commands that change the model of a store
SERVICE, OTHERS = "Run the service", "Files, and a demo"


class Commands(TyperGroup):
    """Prints an error as plain text: a box would break the commands that one copies from it."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command, and end the process."""
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except typer.TyperException as error:
            is_ours = type(error) is typer.BadParameter and error.param is None
            text = error.message if is_ours else error.format_message()
            if text and (context := getattr(error, "ctx", None)) and not is_ours:
                end, path = "" if text.endswith("?") else ".", context.command_path.split()
                text = f"{text.rstrip('.')}{end} See: {' '.join(path)} --help"
            if text:  # else its help is printed
                typer.secho(f"Error: {text}", fg="red", err=True)
            code = error.exit_code
        sys.exit(code if isinstance(code, int) else 0)


cli = typer.Typer(cls=Commands, no_args_is_help=True)
cli.command(rich_help_panel=SERVICE)(serve.serve)
cli.command(rich_help_panel=SERVICE)(serve.worker)
cli.command()(search.search)
cli.command(rich_help_panel=OTHERS)(translate.translate)
cli.command(rich_help_panel=OTHERS)(demo.demo)
cli.add_typer(migrate.cli, name="migrate")
cli.add_typer(stores.cli, name="stores")
cli.add_typer(encoders.cli, name="encoders")
cli.add_typer(anchors.cli, name="anchors")
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
