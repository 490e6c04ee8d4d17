"""`anchorage encoders`: the models whose vectors are translated."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.output import AsJson, print_json, print_rows, warn
from app.cli.service import Service, at, uses_service

cli = typer.Typer(
    no_args_is_help=True,
    help="Register encoders: models that the service runs, or whose vectors you send.",
)

#: columns of `encoders list`
ENCODER_COLUMNS = ("name", "kind", "dim", "model", "modality")


@cli.command("list")
@uses_service
def list_encoders(service: Service, as_json: AsJson = False) -> None:
    """List the registered encoders."""
    listed = service.pages("/encoders", "encoders")
    rows = [[row[column] for column in ENCODER_COLUMNS] for row in listed]
    print_rows(ENCODER_COLUMNS, rows, as_json=as_json)


@cli.command("add")
@uses_service
def add(
    service: Service,
    name: Annotated[str, typer.Argument(help="A name for the encoder, unique in the project.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that runs it, such as all-MiniLM-L6-v2; without one, you send the "
            "vectors and pass --dim.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="sentence-transformers, timm, openai or external; default: the first with "
            "--model, else the last.",
            show_default=False,
        ),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option(help="Numbers of a vector that you send.", show_default=False),
    ] = None,
    modality: Annotated[
        str | None,
        typer.Option(help="text, image, audio or other; default: text.", show_default=False),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit of the model.", show_default=False),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="With --kind openai, the base URL, which ANCHORAGE_REMOTE_URLS lists.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Register an encoder. A model is loaded once, to read its dimension."""
    made = service.post(
        "/encoders",
        name=name,
        kind=kind or ("external" if model is None else "sentence-transformers"),
        model=model,
        dim=dim,
        modality=modality,
        revision=revision,
        options=None if endpoint is None else {"url": endpoint},
    )
    if as_json:
        print_json(made)
        return
    typer.echo(f"{made['name']}: vectors of {made['dim']} numbers, {made['kind']}.")


Name = Annotated[str, typer.Argument(help="Name of the encoder.")]


@cli.command("check")
@uses_service
def check(service: Service, name: Name, as_json: AsJson = False) -> None:
    """Embed up to 50 anchors again, and find out whether the vectors have moved.

    Ends with 1 if they have, or if the model was replaced.
    """
    found = service.post_nothing(at("encoders", name, "check"))
    if as_json:
        print_json(found)
    else:
        inputs = f" {found['inputs']} inputs of {found['anchor_set']}." if found["inputs"] else ""
        typer.echo(f"{name}: {found['result']}. {found['detail']}{inputs}")
        for each in found["recommendations"]:
            warn(each)
    if found["result"] in ("moved", "replaced"):
        raise typer.Exit(1)
