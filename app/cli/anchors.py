"""`anchorage anchors`: sets of items that several encoders embedded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.files import post_anchors, read_inputs, read_npy, to_wire
from app.cli.output import AsJson, name_rows, print_json, print_rows, warn
from app.cli.service import Service, at, uses_service

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

cli = typer.Typer(
    no_args_is_help=True,
    help="Make anchor sets: the same few hundred items, embedded by the old and the new encoder.",
)

#: columns of `anchors list`
SET_COLUMNS = ("name", "size", "encoders")


@cli.command("list")
@uses_service
def list_sets(service: Service, as_json: AsJson = False) -> None:
    """List the anchor sets."""
    listed = service.pages("/anchor-sets", "anchor_sets")
    rows = [[row[column] for column in SET_COLUMNS] for row in listed]
    print_rows(SET_COLUMNS, rows, as_json=as_json)


@cli.command("add")
@uses_service
def add(
    service: Service,
    name: Annotated[str, typer.Argument(help="A name for the set, unique in the project.")],
    store: Annotated[
        str | None,
        typer.Option(
            help="A connected store with texts: its rows become the anchors.", show_default=False
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="Texts that the encoders embed: a line each, or JSON lines with `text`.",
            show_default=False,
        ),
    ] = None,
    embeddings: Annotated[
        list[str] | None,
        typer.Option(
            help="Vectors by one encoder, as ENCODER=FILE.npy; the same items in the same order.",
            show_default=False,
        ),
    ] = None,
    encoders: Annotated[
        str | None,
        typer.Option(
            help="Encoders that embed the texts, separated by commas.", show_default=False
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=2, help="Anchors from the store; default: 1,000.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an anchor set of a store, of texts, of vectors that you have, or of both of these."""
    if (store is None) == (inputs is None and not embeddings):
        raise typer.BadParameter("Pass --store, or --inputs, --embeddings or both of these.")
    by = [each.strip() for each in (encoders or "").split(",") if each.strip()]
    vectors = dict(_embedding(each) for each in embeddings or ())
    if vectors and (size or (by and inputs is None)):
        raise typer.BadParameter("--encoders needs --inputs or --store, and --size needs --store.")
    if vectors and inputs is None:
        made = post_anchors(service, name, vectors)
    else:
        made = service.post(
            "/anchor-sets",
            name=name,
            store=store,
            size=size,
            encoders=by or None,
            inputs=None if inputs is None else read_inputs(inputs),
            embeddings={each: to_wire(rows) for each, rows in vectors.items()} or None,
        )
    if store is not None:
        typer.echo(f"The service embeds texts of {store}.", err=True)
        service.wait(made)
        made = service.get(at("anchor-sets", name))
    if as_json:
        print_json(made)
        return
    typer.echo(f"{name}: {made['size']:,} anchors by {', '.join(made['encoders'])}.")
    report = service.find("anchor-sets", name, "report") or {"findings": []}
    for found in report["findings"]:
        if found["severity"] in ("error", "warning"):
            place = ", ".join([found["code"], *found["encoders"]])
            warn(f"WARNING ({place}): {found['detail']}.{name_rows(found['rows'])}")


def _embedding(text: str) -> tuple[str, NDArray[np.floating[Any]]]:
    """Return an encoder and its vectors. Raises typer.BadParameter."""
    encoder, separator, file = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"--embeddings: write ENCODER=FILE.npy, not {text}.")
    return encoder, read_npy(Path(file))
