"""`anchorage quickstart`: from a store to a working pair, and what to do with it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from app.cli.local import read_settings
from app.cli.output import AsJson, print_json
from app.cli.service import DEFAULT_URL, Url, connect
from app.cli.stores import TextField, VectorField

if TYPE_CHECKING:
    from anchorage_client import Client

#: kinds of stores by the scheme of their addresses
SCHEMES = {
    "postgresql": "pgvector",
    "postgres": "pgvector",
    "http": "qdrant",
    "https": "qdrant",
}


def quickstart(
    source: Annotated[
        str,
        typer.Argument(
            help="Your store: an address (postgresql://..., http://... of Qdrant or Milvus), a "
            "folder, a file, or the name of a connected one."
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            help="The new encoder: its name, or a model that sentence-transformers loads."
        ),
    ],
    old_encoder_runs: Annotated[
        bool, typer.Option(prompt="Can the old encoder still embed queries?", help="If it does.")
    ],
    kind: Annotated[
        str | None,
        typer.Option(help="The kind of a folder or file; of a database, by its address."),
    ] = None,
    collection: Annotated[
        str | None, typer.Option("--collection", "--table", help="Its table or collection.")
    ] = None,
    text_field: TextField = None,
    vector_field: VectorField = None,
    items: Annotated[
        int | None, typer.Option(help="Items of your index; default: rows of the store.")
    ] = None,
    texts_exist: Annotated[
        bool, typer.Option(help="Whether the items can be embedded again.")
    ] = True,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Say what to do with an index whose model changes, and leave a search that works.

    It takes anchors from the store, and writes nothing to it. The report is in Markdown. Where no
    service answers on this machine, the command runs one on the data folder until it ends.
    """
    place: dict[str, Any] | None = None
    setting = None
    if "://" in source or Path(source).exists():
        if collection is None:
            raise typer.BadParameter("Pass --collection with the name of the table or collection.")
        source = source if "://" in source else str(Path(source).resolve())
        place = {
            "kind": kind or kind_of(source),
            "collection": collection,
            "vector_field": vector_field,
            "text_field": text_field,
        }
        store = _name(collection.rpartition(".")[2])
        entries = {name: entry.url for name, entry in read_settings().stores.items()}
        # The name of an address that the settings do not list stands for this address alone.
        unlisted = f"{store}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
        listed = next((name for name, each in entries.items() if each == source), unlisted)
        place["address"] = listed
        setting = None if listed in entries else json.dumps({listed: source})
    with ExitStack() as opened:
        _run_service(opened, url, setting)
        client = opened.enter_context(connect(url))
        undo = opened.enter_context(ExitStack())  # what a failure takes back
        if place is not None:
            _connect(client, undo, store, source, place)
            source = store
        pair, rows = _pair(client, source, target)
        typer.echo("Measuring: this can take a minute.", err=True)
        answer = client.advice(
            **pair,
            corpus_size=items or rows,
            old_encoder_runs=old_encoder_runs,
            text_exists=texts_exist,
        )
        findings = client.anchor_sets.report(pair["anchor_set"])["findings"]
        undo.pop_all()
    if setting is not None:
        setting = without_password(setting)
    more = {"store": source, "setting": setting, "url": url, "findings": findings}
    answer = {**pair, **answer, **more}
    if as_json:
        print_json(answer)
    else:
        typer.echo("\n".join(_report(answer)))


def kind_of(address: str) -> str:
    """Return the kind of the database at an address. Raises typer.BadParameter."""
    scheme, separator, _ = address.partition("://")
    if separator and urlsplit(address).netloc.endswith(":19530"):
        return "milvus"
    if separator and scheme.lower() in SCHEMES:
        return SCHEMES[scheme.lower()]
    shown = f"{scheme}://..." if separator else address  # what follows may hold a password
    raise typer.BadParameter(f"The kind of {shown} is not known. Pass --kind.")


def without_password(address: str) -> str:
    """Return an address with PASSWORD in the place of its password."""
    found = re.sub(r"(?<=://)([^/@:]*):.*@", r"\1:PASSWORD@", address)
    return re.sub(r"((?:password|api_key)=)[^&\"]*", r"\1PASSWORD", found)


def _name(text: str) -> str:
    """Return a name that the service takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "store"


def _run_service(opened: ExitStack, url: str, stores: str | None) -> None:
    """Run a service that opens these stores until `opened` closes, unless one answers.

    Elsewhere than on this machine, the first request says that none answers.
    """
    import httpx2

    from app.demo import DemoError
    from app.demo.server import server

    there = urlsplit(url)
    try:
        httpx2.get(f"{url}/livez", timeout=5, trust_env=False)
    except httpx2.HTTPError:
        if there.hostname not in ("127.0.0.1", "localhost"):
            return
        typer.echo(f"No service answers at {url}: this command runs one.", err=True)
        settings = read_settings()
        entries = {name: entry.model_dump() for name, entry in settings.stores.items()}
        listed = json.dumps({**json.loads(stores or "{}"), **entries})
        variables = {**os.environ, "ANCHORAGE_STORES": listed}
        try:
            opened.enter_context(server(settings.data_dir, there.port or 80, variables))
        except DemoError as error:
            raise typer.BadParameter(str(error)) from None


def _connect(
    client: Client, undo: ExitStack, store: str, address: str, place: dict[str, Any]
) -> None:
    """Connect the store, and register the encoder STORE-old of its vectors."""
    old = f"{store}-old"
    known = {row["name"] for row in (*client.encoders.list(), *client.stores.list())}
    if old not in known:  # a store needs an encoder of its dimension, which only the store says
        client.encoders.create(old, dim=_dim(address, place))
        undo.callback(client.encoders.delete, old)
    client.stores.get_or_create(store, encoder=old, **place)
    if store not in known:
        undo.callback(client.stores.delete, store)


def _dim(address: str, place: dict[str, Any]) -> int:
    """Return the dimension of a store's vectors. Raises typer.BadParameter."""
    from app.db.tables import StoreRow
    from app.errors import AnchorageError
    from app.stores.handles import StoreAddress, StoreHandles

    handles = StoreHandles({place["address"]: StoreAddress(address)})
    where = {name: place[name] for name in ("kind", "address", "collection")}
    row: Any = StoreRow(project="default", name="new", options=place, **where)
    try:
        return handles.wait(row, lambda store: store.facts()).dim
    except AnchorageError as error:
        raise typer.BadParameter(error.detail) from None
    finally:
        handles.close()


def _pair(client: Client, store: str, target: str) -> tuple[dict[str, Any], int]:
    """Return a pair with anchors from a store's texts, and the store's rows."""
    there = client.stores.get(store)
    if target not in {row["name"] for row in client.encoders.list()}:
        model, target = target, _name(target.rstrip("/").rpartition("/")[2])
        client.encoders.get_or_create(target, kind="sentence-transformers", model=model)
    name = f"{store}-{target}"
    typer.echo(f"{target} embeds texts of {store}: this can take some minutes.", err=True)
    client.anchor_sets.get_or_create(name, store=store, encoders=[target])
    return {"source": there["encoder"], "target": target, "anchor_set": name}, there["rows"]


def _report(answer: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report in Markdown."""
    pair = {name: answer[name] for name in ("source", "target", "anchor_set")}
    best, *others = answer["options"]
    yield f"# {pair['source']} to {pair['target']}: {answer['advice']}\n\n{best['reason']}\n"
    if (estimate := answer["fidelity"]) is not None:
        recall = estimate["measures"]["recall"]
        yield (
            f"A translated query finds {recall['value']:.0%} (between {recall['low']:.0%} and "
            f"{recall['high']:.0%}) of the ten results that a native query finds among "
            f"{estimate['index']:,} items.\n"
        )
    yield f"{answer['summary']}\n\n| other option | nDCG@10 over keep | why |\n| --- | --- | --- |"
    for option in others:
        gain = option["over_keep"]
        worth = "unknown" if gain is None else f"{gain['low']:+.3f} to {gain['high']:+.3f}"
        worth = worth if option["possible"] else "not possible"
        yield f"| {option['name']} | {worth} | {option['reason']} |"
    yield ""
    for found in answer["findings"]:
        if found["severity"] != "info":
            yield f"- {found['severity']} of the anchors ({found['code']}): {found['detail']}."
    if answer["setting"] is not None:
        yield "Let the service open this address; PASSWORD stands for yours:\n\n```sh"
        yield f"export ANCHORAGE_STORES={shlex.quote(answer['setting'])}\n```\n"
    yield "Start the service with `anchorage serve`, and use the pair:\n\n```python"
    yield f'from anchorage_client import Client\n\nclient = Client("{answer["url"]}")'
    yield f'pair = client.pair("{pair["source"]}", "{pair["target"]}", "{pair["anchor_set"]}")'
    yield f'print(pair.search("{answer["store"]}", inputs=["a question"]).results[0].ids)\n```'
