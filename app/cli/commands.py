"""All commands of `anchorage`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from app import __version__
from app.cli import (
    INTERRUPTED,
    database,
    demo,
    doctor,
    encoders,
    keys,
    migrate,
    quickstart,
    serve,
    stores,
    translate,
)


class Interruptible(TyperGroup):
    """Ends with one line and the usual exit code after a Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            pass
        except typer.Abort as error:
            if not isinstance(error.__context__, KeyboardInterrupt):  # at a question
                raise
        typer.echo("Interrupted.", err=True)
        raise typer.Exit(INTERRUPTED)


cli = typer.Typer(cls=Interruptible, no_args_is_help=True)
cli.command()(serve.serve)
cli.command()(serve.worker)
cli.command()(translate.translate)
cli.command()(demo.demo)
cli.command()(quickstart.quickstart)
cli.command()(doctor.doctor)
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
