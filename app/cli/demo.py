"""`anchorage demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.demo import SENTENCE, DemoError


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo-output"),
    json: Annotated[
        Path | None, typer.Option(help="File for the numbers as JSON.", show_default=False)
    ] = None,
    sentence: Annotated[
        str,
        typer.Option(
            help="A sentence to encode with all-MiniLM-L6-v2 and to find in the index of another "
            "encoder."
        ),
    ] = SENTENCE,
    url: Annotated[
        str | None,
        typer.Option(
            help="A running service without the names that the demo uses; default: the demo starts "
            "one.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            envvar="ANCHORAGE_API_KEY",
            help="An API key of that service, with the scope write.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Translate 1,810 real sentences between three encoders over HTTP, and report the quality.

    It takes less than a minute and needs no network.
    """
    from app.demo import run

    try:
        run.demo(out=out, json_path=json, sentence=sentence, url=url, key=key)
    except DemoError as error:
        typer.secho(f"the demo stopped: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
