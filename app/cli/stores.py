"""`anchorage stores`: connects collections of somebody's vector database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.files import read_npy, to_wire
from app.cli.output import AsJson, print_json, print_rows, warn
from app.cli.plan_tables import print_unknown
from app.cli.service import Service, at, uses_service
from app.cli.shared import TextField, VectorField

cli = typer.Typer(
    no_args_is_help=True,
    help="Connect collections of vector databases, which ANCHORAGE_STORES allows.",
)

#: columns of `stores list`
STORE_COLUMNS = ("name", "kind", "address", "collection", "encoder")

#: the modes of `stores search`
MODES = ("bridge", "cascade", "fuse", "translate")

Mode = Annotated[
    str | None,
    typer.Option(
        help="bridge, cascade, fuse or translate; default: as far as the store is.",
        show_default=False,
    ),
]
Native = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=200,
        help="Candidates of each query whose text the new encoder embeds; default: 20 where "
        "the store has texts.",
        show_default=False,
    ),
]

#: code of the note that a store's rows are by several models
MIXED = "mixed-vectors"


@cli.command("connect")
@uses_service
def connect(
    service: Service,
    name: Annotated[str, typer.Argument(help="A name for the store, unique in the project.")],
    kind: Annotated[
        str,
        typer.Option(help="pgvector, qdrant, chroma, lancedb, sqlite-vec, faiss or milvus."),
    ],
    address: Annotated[str, typer.Option(help="The name of an address in ANCHORAGE_STORES.")],
    collection: Annotated[str, typer.Option(help="The table, collection or file.")],
    encoder: Annotated[str, typer.Option(help="The encoder whose vectors it holds.")],
    vector_field: VectorField = None,
    id_field: Annotated[
        str | None,
        typer.Option(help="Column of the ids; default: the primary key.", show_default=False),
    ] = None,
    text_field: TextField = None,
    options: Annotated[
        str | None,
        typer.Option(help="Options of the kind as a JSON object.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Connect a store, read its size, and say which encoder its vectors look like."""
    store = service.post(
        "/stores",
        name=name,
        kind=kind,
        address=address,
        collection=collection,
        encoder=encoder,
        vector_field=vector_field,
        id_field=id_field,
        text_field=text_field,
        options=None if options is None else _json_object(options),
    )
    if as_json:
        print_json(store)
    else:
        _print_store(store)


@cli.command("list")
@uses_service
def list_connected(service: Service, as_json: AsJson = False) -> None:
    """List the connected stores, without connecting to them."""
    rows = [[row[name] for name in STORE_COLUMNS] for row in service.pages("/stores", "stores")]
    print_rows(STORE_COLUMNS, rows, as_json=as_json)


@cli.command("search")
@uses_service
def search(
    service: Service,
    name: Annotated[str, typer.Argument(help="The name of the store.")],
    target: Annotated[
        str, typer.Option("--target", help="The new encoder, which made the queries.")
    ],
    anchor_set: Annotated[
        str | None,
        typer.Option(
            help="The anchor set; default: the one of the store's migration.", show_default=False
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A query for the new encoder to encode.", show_default=False),
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option(help="An npy file with one query in each row.", show_default=False),
    ] = None,
    mode: Mode = None,
    k: Annotated[int, typer.Option("-k", min=1, max=1_000, help="Results of each query.")] = 10,
    native: Native = None,
    payload: Annotated[
        bool, typer.Option("--payload", help="Print what the store holds of each row.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Search a store of an old encoder with queries of a new one. Nothing is written."""
    if mode not in (None, *MODES):
        raise typer.BadParameter(f"There is no mode {mode!r}. Use one of: {', '.join(MODES)}.")
    if bool(text) == (vectors is not None):
        raise typer.BadParameter("Pass exactly one of --text and --vectors.")
    answer = service.post(
        at("stores", name, "search"),
        target=target,
        anchor_set=anchor_set,
        inputs=text or None,
        queries=None if vectors is None else to_wire(read_npy(vectors)),
        mode=mode,
        k=k,
        native=native,
        payload=payload,
    )
    if as_json:
        print_json(answer)
        return
    for warning in answer["warnings"]:
        warn(f"WARNING ({warning['code']}): {warning['detail']}")
    for number, found in enumerate(answer["results"]):
        scored = f", {len(found['native'])} by native vectors" if found.get("native") else ""
        typer.echo(f"query {number + 1}, by {answer['mode']}{scored}")
        for row, (id_, score) in enumerate(zip(found["ids"], found["scores"], strict=True)):
            more = f"  {_as_json(found['payloads'][row])}" if found.get("payloads") else ""
            typer.echo(f"{row + 1:4}  {score:8.4f}  {id_}{more}")


@cli.command("disconnect")
@uses_service
def disconnect(
    service: Service,
    name: Annotated[str, typer.Argument(help="The name of the store.")],
    as_json: AsJson = False,
) -> None:
    """Forget a store. Nothing changes in the store itself."""
    service.call("DELETE", at("stores", name))
    if as_json:
        print_json({"name": name, "state": "disconnected"})
        return
    typer.echo(f"{name} is disconnected. Its rows are as they were.")


def _print_store(store: Mapping[str, Any]) -> None:
    index = "with an index" if store["indexed"] else "without an index"
    typer.echo(
        f"{store['name']}: {store['rows']:,} rows of {store['dim']} numbers ({store['dtype']}, "
        f"{store['metric']}), {index}."
    )
    verdict, encoder = store["space"]["verdict"], store["encoder"]
    notes = store["notes"]
    if verdict == "another":
        likeliest = store["space"]["likeliest"]
        warn(f"WARNING: its vectors look like those of {likeliest}, not of {encoder}.")
    elif verdict == "matches" and all(note["code"] != MIXED for note in notes):
        typer.echo(f"Its vectors look like those of {encoder}.")
    elif verdict == "unknown":
        print_unknown(store["space"], encoder)
    for note in notes:
        if note["code"] == MIXED:
            warn(f"WARNING: {note['detail']}")
        else:
            typer.echo(f"Note ({note['code']}): {note['detail']}")


def _as_json(payload: Mapping[str, object]) -> str:
    return json.dumps(payload, ensure_ascii=False)


def _json_object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--options is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter("--options must be a JSON object, such as '{\"a\": 1}'.")
    return found
