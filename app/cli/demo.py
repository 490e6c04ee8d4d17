"""`anchorage demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.demo import SENTENCE, DemoError


def demo(
    json: Annotated[Path | None, typer.Option(help="File for the numbers as JSON.")] = None,
    sentence: Annotated[
        str,
        typer.Option(help="A question to search the old index for with the new model."),
    ] = SENTENCE,
) -> None:
    """Search an index of a retired model with a new one over HTTP, and measure on judged queries.

    It takes half a minute and needs no network.
    """
    from anchorage_client import AnchorageError
    from app.demo import run

    try:
        run.demo(json_path=json, sentence=sentence)
    except (AnchorageError, DemoError) as error:
        typer.secho(f"the demo stopped: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
