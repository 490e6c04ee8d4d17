"""`anchorage stores`: connects collections of somebody's vector database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from app.cli.output import AsJson, answer, print_fields, print_json, warn
from app.cli.service import DEFAULT_URL, Url, connect

cli = typer.Typer(
    no_args_is_help=True,
    help="Connect collections of vector databases, which ANCHORAGE_STORES allows.",
)

#: columns of `stores list`
STORE_COLUMNS = ("name", "kind", "address", "collection", "where", "encoder")

TextField = Annotated[
    str | None, typer.Option(help="Column or field of the texts, or a template: {title}: {body}.")
]
VectorField = Annotated[
    str | None, typer.Option(help="Column or named vector; default: the only one.")
]
Name = Annotated[str, typer.Argument(help="The name of the store.")]


@cli.command("connect")
def connect_store(
    name: Name,
    kind: Annotated[
        str, typer.Option(help="pgvector, qdrant, chroma, lancedb, sqlite-vec, faiss or milvus.")
    ],
    address: Annotated[str, typer.Option(help="The name of an address in ANCHORAGE_STORES.")],
    collection: Annotated[
        str, typer.Option("--collection", "--table", help="The table, collection or file.")
    ],
    encoder: Annotated[str, typer.Option(help="The encoder whose vectors it holds.")],
    vector_field: VectorField = None,
    id_field: Annotated[
        str | None, typer.Option(help="Column of the ids; default: the primary key.")
    ] = None,
    text_field: TextField = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Connect a store, read its size, and say which encoder its vectors look like."""
    with connect(url) as client:
        store = client.stores.get_or_create(
            name,
            kind=kind,
            address=address,
            collection=collection,
            encoder=encoder,
            vector_field=vector_field,
            id_field=id_field,
            text_field=text_field,
        )
    if as_json:
        print_json(store)
        return
    index = "with an index" if store["indexed"] else "without an index"
    typer.echo(
        f"{store['name']}: {store['rows']:,} rows of {store['dim']} numbers ({store['dtype']}, "
        f"{store['metric']}), {index}."
    )
    print_space(store["space"], store["encoder"])
    for note in store["notes"]:
        typer.echo(f"Note ({note['code']}): {note['detail']}")


@cli.command("list")
def list_connected(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List the connected stores, without connecting to them."""
    with connect(url) as client:
        print_fields(STORE_COLUMNS, client.stores.list(), as_json=as_json)


@cli.command("name")
def name_store(
    store: Name,
    name: Annotated[str, typer.Argument(help="The model's name that applications will use.")],
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Give a store a model's name, which follows it through a cutover and a rollback."""
    with connect(url) as client:
        made = client.names.create(name, store=store)
    sentence = f"/v1/embeddings with the model {name!r} makes the vectors of {store}."
    answer(made, sentence, as_json=as_json)


@cli.command("unname")
def unname_store(
    name: Annotated[str, typer.Argument(help="The model's name.")],
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Delete the name of a store. Applications that use it get errors."""
    with connect(url) as client:
        client.names.delete(name)
    answer({"name": name, "state": "deleted"}, f"The name {name!r} is deleted.", as_json=as_json)


@cli.command("disconnect")
def disconnect(name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Forget a store. Nothing changes in the store itself."""
    with connect(url, name) as client:
        client.stores.delete(name)
    made = {"name": name, "state": "disconnected"}
    answer(made, f"{name} is disconnected. Its rows are as they were.", as_json=as_json)


def print_space(space: Mapping[str, Any], encoder: str) -> None:
    """Print which encoder a store's vectors look like; a note says more about a mixture."""
    if space["verdict"] == "matches":
        typer.echo(f"Its vectors look like those of {encoder}.")
    elif space["verdict"] == "another":
        warn(f"WARNING: its vectors look like those of {space['likeliest']}, not of {encoder}.")
    elif space["verdict"] == "mixed":
        warn("WARNING: it holds rows of several encoders.")
    else:
        warn(f"No anchors tell whether {encoder} made its vectors.")
