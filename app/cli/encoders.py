"""`anchorage encoders`: the models whose vectors are translated."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.output import AsJson, answer, print_fields, warn
from app.cli.service import DEFAULT_URL, Url, connect

cli = typer.Typer(
    no_args_is_help=True,
    help="Register encoders: models that the service runs, or whose vectors you send.",
)

#: columns of `encoders list`
ENCODER_COLUMNS = ("name", "kind", "dim", "model", "modality")

Name = Annotated[str, typer.Argument(help="Name of the encoder.")]


@cli.command("list")
def list_encoders(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List the registered encoders."""
    with connect(url) as client:
        print_fields(ENCODER_COLUMNS, client.encoders.list(), as_json=as_json)


@cli.command("add")
def add(
    name: Name,
    model: Annotated[
        str | None, typer.Option(help="A model that the service runs, as all-MiniLM-L6-v2.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="sentence-transformers, timm, openai or external; default: openai with "
            "--endpoint, else the first with --model, else the last."
        ),
    ] = None,
    dim: Annotated[
        int | None, typer.Option(help="Without a model: numbers of a vector that you send.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="For openai, the base URL, which ANCHORAGE_REMOTE_URLS lists."),
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Register an encoder. A model is loaded once, to read its dimension."""
    usual = "openai" if endpoint else "sentence-transformers" if model else "external"
    with connect(url) as client:  # of two endpoints, only `create` tells one from the other
        if model and not endpoint:
            warn("The service loads the model, which may take a minute.")
        made = (client.encoders.create if endpoint else client.encoders.get_or_create)(
            name,
            kind=kind or usual,
            model=model,
            dim=dim,
            options=None if endpoint is None else {"url": endpoint},
        )
    sentence = f"{made['name']}: vectors of {made['dim']} numbers, {made['kind']}."
    answer(made, sentence, as_json=as_json)


@cli.command("delete")
def delete(name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Delete an encoder that nothing uses."""
    with connect(url) as client:
        client.encoders.delete(name)
    answer({"name": name, "state": "deleted"}, f"{name} is deleted.", as_json=as_json)
