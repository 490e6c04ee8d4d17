"""`anchorage anchors`: the items that two models have embedded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.output import AsJson, answer, print_fields, warn
from app.cli.service import DEFAULT_URL, Url, connect

cli = typer.Typer(no_args_is_help=True, help="Make anchors: items that two models have embedded.")

#: columns of `anchors list`
SET_COLUMNS = ("name", "size", "encoders")

Name = Annotated[str, typer.Argument(help="Name of the set.")]


@cli.command("list")
def list_sets(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List the sets of anchors."""
    with connect(url) as client:
        print_fields(SET_COLUMNS, client.anchor_sets.list(), as_json=as_json)


@cli.command("add")
def add(
    name: Name,
    encoder: Annotated[list[str] | None, typer.Option(help="Embeds the texts.")] = None,
    store: Annotated[str | None, typer.Option(help="Take 1,000 texts of this store.")] = None,
    texts: Annotated[Path | None, typer.Option(help="Kept texts, one a line.")] = None,
    vectors: Annotated[list[str] | None, typer.Option(help="OLD=FILE.npy, row by row.")] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Make anchors of a store's texts, or of kept texts and vectors."""
    import numpy as np

    pairs = [each.partition("=") for each in vectors or ()]
    if not (encoder or pairs) or bool(store) == bool(texts or pairs) or "" in [p[2] for p in pairs]:
        raise typer.BadParameter(
            "Pass --store, or --texts and --vectors OLD=FILE.npy (OLD is its model), and --encoder."
        )
    embeddings, inputs = {}, None
    try:
        if texts:
            inputs = texts.read_text("utf-8").removesuffix("\n").split("\n")
        for owner, _, file in pairs:
            embeddings[owner] = np.asarray(np.load(file, allow_pickle=False), np.float32)
    except OSError as error:
        raise typer.BadParameter(f"{error.filename}: {error.strerror}.") from None
    except (EOFError, TypeError, ValueError):
        raise typer.BadParameter("Texts are in UTF-8, vectors as numpy.save writes them.") from None
    with connect(url) as client:
        if store:
            made = client.anchor_sets.create_from_store(name, store, encoders=encoder or [])
        else:
            made = client.anchor_sets.create(
                name, inputs=inputs, encoders=encoder, embeddings=embeddings or None
            )
        found = client.anchor_sets.report(name)["findings"]
    sentence = f"{name}: {made['size']:,} anchors of {', '.join(made['encoders'])}."
    answer(made, sentence, as_json=as_json)
    for each in (each for each in found if each["severity"] != "info"):
        warn(f"{each['severity'].upper()} ({each['code']}): {each['detail']}.")
    raise typer.Exit(any(each["severity"] == "error" for each in found))


@cli.command("report")
def report(name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Say what is wrong with a set, and what to do."""
    with connect(url) as client:
        found = client.anchor_sets.report(name)
    if as_json or found["findings"]:
        print_fields(("severity", "code", "detail"), found["findings"], as_json=as_json)
    else:
        typer.echo(f"Nothing is wrong with the {found['size']:,} anchors of {name}.")
    raise typer.Exit(any(each["severity"] == "error" for each in found["findings"]))


@cli.command("delete")
def delete(name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Delete a set that nothing uses."""
    with connect(url) as client:
        client.anchor_sets.delete(name)
    answer({"name": name, "state": "deleted"}, f"{name} is deleted.", as_json=as_json)
