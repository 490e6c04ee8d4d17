"""`anchorage demo`."""

from __future__ import annotations

import typer

from app.demo import DemoError


def demo() -> None:
    """Move a table in PostgreSQL to a new model while an application searches and writes.

    It takes a minute, brings its own PostgreSQL, and needs no network.
    """
    from anchorage_client import AnchorageError
    from app.demo import run

    try:
        run.demo()
    except (AnchorageError, DemoError) as error:
        typer.secho(f"the demo stopped: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
