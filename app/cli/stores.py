"""`anchorage stores`: connects collections of somebody's vector database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.output import AsJson, print_json, print_rows
from app.cli.shared import TextField, VectorField, open_database, validate
from app.services.request_context import RequestContext

if TYPE_CHECKING:
    from app.services.stores.stores import StoreReport

cli = typer.Typer(
    no_args_is_help=True,
    help="Connect collections of vector databases, which ANCHORAGE_STORES allows.",
)

Project = Annotated[str, typer.Option(help="The project of the store.")]

#: columns of `stores list`, and rows of one page of the database
STORE_COLUMNS = ("name", "kind", "address", "collection", "encoder")
STORES_PER_PAGE = 500

#: the modes of `stores search`
MODES = ("bridge", "cascade", "fuse", "translate")


@cli.command("connect")
def connect(
    name: Annotated[str, typer.Argument(help="A name for the store, unique in the project.")],
    kind: Annotated[str, typer.Option(help="pgvector, qdrant, chroma, lancedb or sqlite-vec.")],
    address: Annotated[str, typer.Option(help="The name of an address in ANCHORAGE_STORES.")],
    collection: Annotated[str, typer.Option(help="The table, collection or file.")],
    encoder: Annotated[str, typer.Option(help="The encoder whose vectors it holds.")],
    vector_field: VectorField = None,
    id_field: Annotated[
        str | None,
        typer.Option(help="Column of the ids; default: the primary key.", show_default=False),
    ] = None,
    text_field: TextField = None,
    learn: Annotated[
        bool,
        typer.Option("--learn", help="Anchor sets made from it grow with what searches embed."),
    ] = False,
    options: Annotated[
        str | None,
        typer.Option(help="Options of the kind as a JSON object.", show_default=False),
    ] = None,
    project: Project = "default",
    as_json: AsJson = False,
) -> None:
    """Connect a store, read its size, and say which encoder its vectors look like."""
    from app.api.resources.stores.stores import NewStore, describe
    from app.services.stores.stores import create_store

    body = validate(
        NewStore,
        name=name,
        kind=kind,
        address=address,
        collection=collection,
        encoder=encoder,
        vector_field=vector_field,
        id_field=id_field,
        text_field=text_field,
        learn=learn,
        options=None if options is None else _json_object(options),
    )
    with open_database() as services:
        report = create_store(services, RequestContext(project), body.definition())
    if as_json:
        print_json(describe(report).model_dump(mode="json"))
    else:
        _print_report(report)


@cli.command("list")
def list_connected(project: Project = "default", as_json: AsJson = False) -> None:
    """List the connected stores, without connecting to them."""
    from app.storage.queries import resources
    from app.storage.tables import StoreRow

    rows, after = [], ""
    with open_database() as services, services.db.transaction() as session:
        while page := resources.page(
            session, StoreRow, project, after=after, limit=STORES_PER_PAGE
        ):
            rows += [
                (row.name, row.kind, row.address, row.collection, row.encoder.name) for row in page
            ]
            after = page[-1].name
    print_rows(STORE_COLUMNS, rows, as_json=as_json)


@cli.command("search")
def search(
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
    mode: Annotated[
        str | None,
        typer.Option(
            help="bridge, cascade, fuse or translate; default: as far as the store is.",
            show_default=False,
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=1_000, help="Results of each query.")] = 10,
    native: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=200,
            help="Candidates of each query whose text the new encoder embeds; default: 20 where "
            "the store has texts.",
            show_default=False,
        ),
    ] = None,
    payload: Annotated[
        bool, typer.Option("--payload", help="Print what the store holds of each row.")
    ] = False,
    project: Project = "default",
    as_json: AsJson = False,
) -> None:
    """Search a store of an old encoder with queries of a new one. Nothing is written."""
    import anyio
    import numpy as np
    import torch

    from app.api.resources.stores.store_search import search_members
    from app.services.encoders.encoding import Inputs
    from app.services.stores.search import StoreSearch, search_store
    from app.types import InputRole

    if mode not in (None, *MODES):
        raise typer.BadParameter(f"There is no mode {mode!r}. Use one of: {', '.join(MODES)}.")
    queries = None
    if vectors is not None:
        try:
            read = np.load(vectors, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise typer.BadParameter(f"{vectors} is no npy file: {error}") from None
        if read.ndim not in (1, 2) or read.dtype.kind != "f":
            raise typer.BadParameter(f"{vectors} must hold floats with one query in each row.")
        queries = torch.from_numpy(np.atleast_2d(read).astype(np.float32))
    request = StoreSearch(
        store=name,
        target=target,
        queries=queries,
        inputs=Inputs(text, InputRole.query) if text else None,
        anchor_set=anchor_set,
        mode=mode,  # type: ignore[arg-type]
        k=k,
        method="auto",
        payload=payload,
        native=native,
    )
    with open_database() as services:
        answer = anyio.run(search_store, services, RequestContext(project), request)
    if as_json:
        print_json(search_members(answer))
        return
    for warning in answer.warnings:
        typer.secho(f"WARNING ({warning.code}): {warning.detail}", fg="yellow", err=True)
    for number, found in enumerate(answer.results):
        scored = f", {len(found.native)} by native vectors" if found.native else ""
        typer.echo(f"query {number + 1}, by {answer.mode}{scored}")
        for place, (id_, score) in enumerate(zip(found.ids, found.scores, strict=True)):
            more = "" if found.payloads is None else f"  {_as_json(found.payloads[place])}"
            typer.echo(f"{place + 1:4}  {score:8.4f}  {id_}{more}")


@cli.command("disconnect")
def disconnect(
    name: Annotated[str, typer.Argument(help="The name of the store.")],
    project: Project = "default",
    as_json: AsJson = False,
) -> None:
    """Forget a store. Nothing changes in the store itself."""
    from app.services.stores.stores import delete_store

    with open_database() as services:
        delete_store(services, RequestContext(project), name)
    if as_json:
        print_json({"name": name, "state": "disconnected"})
        return
    typer.echo(f"{name} is disconnected. Its rows are as they were.")


def _print_report(report: StoreReport) -> None:
    from app.services.stores.stores import describe_mixture

    facts, space = report.facts, report.space
    index = "with an index" if facts.indexed else "without an index"
    typer.echo(
        f"{report.row.name}: {facts.rows:,} rows of {facts.dim} numbers ({facts.dtype}, "
        f"{facts.metric}), {index}."
    )
    if space.verdict == "another":
        typer.secho(
            f"WARNING: its vectors look like those of {space.likeliest}, not of "
            f"{report.row.encoder.name}.",
            fg="yellow",
            err=True,
        )
    mixture = describe_mixture(space, report.foreign, report.row.encoder.name)
    if space.verdict == "matches" and mixture is None:
        typer.echo(f"Its vectors look like those of {report.row.encoder.name}.")
    if mixture is not None:
        typer.secho(f"WARNING: {mixture}.", fg="yellow", err=True)
    if not facts.can_migrate:
        typer.echo("It can be searched, and not migrated.")
    for note in facts.notes:
        typer.echo(f"Note ({note.code}): {note.detail}")


def _as_json(payload: Mapping[str, object]) -> str:
    return json.dumps(payload, default=str, ensure_ascii=False)


def _json_object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--options is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter("--options must be a JSON object, such as '{\"a\": 1}'.")
    return found
