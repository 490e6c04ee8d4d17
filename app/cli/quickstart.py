"""`anchorage quickstart`: from a store or vectors to a working pair, and what to do with it."""

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
    import numpy as np
    from numpy.typing import NDArray

    from anchorage_client import Client

#: kinds of stores by the scheme of their addresses
SCHEMES = {
    "postgresql": "pgvector",
    "postgres": "pgvector",
    "http": "qdrant",
    "https": "qdrant",
}

#: what the folder of a kind contains
SIGNS = {
    "chroma": "chroma.sqlite3",
    "lancedb": "*.lance",
    "qdrant": "meta.json",
    "faiss": "*.faiss",
}

#: most anchors of two files: more take longer and gain little
MAX_ANCHORS = 5_000


def quickstart(
    source: Annotated[
        str,
        typer.Argument(
            help="Your store: an address (postgresql://..., http://... of Qdrant or Milvus), a "
            "folder, a file, or the name of a connected one. Or an npy file of vectors by the old "
            "encoder."
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            help="The new encoder: its name, or a model that sentence-transformers loads. For an "
            "npy file, another one: the same items in the same order."
        ),
    ],
    old_encoder_runs: Annotated[
        bool, typer.Option(prompt="Can the old encoder still embed queries?", help="If it does.")
    ],
    kind: Annotated[
        str | None, typer.Option(help="The kind of the store; default: by its address.")
    ] = None,
    collection: Annotated[
        str | None, typer.Option("--collection", "--table", help="Its table or collection.")
    ] = None,
    text_field: TextField = None,
    vector_field: VectorField = None,
    items: Annotated[
        int | None, typer.Option(help="Items of your index; default: rows of the store or file.")
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
    is_file = source.endswith(".npy")
    place = None
    if not is_file and ("://" in source or Path(source).exists()):
        if collection is None:
            raise typer.BadParameter("Pass --collection with the name of the table or collection.")
        place = {
            "kind": kind or kind_of(source),
            "collection": collection,
            "vector_field": vector_field,
            "text_field": text_field,
        }
        source = source if "://" in source else str(Path(source).resolve())
    entries = {name: entry.url for name, entry in read_settings().stores.items()}
    with ExitStack() as opened:
        setting = None
        if place is not None:
            store = _name(str(collection).rpartition(".")[2])
            # The name of an address that the settings do not list stands for this address alone.
            unlisted = f"{store}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
            listed = next((name for name, each in entries.items() if each == source), unlisted)
            place["address"] = listed
            setting = None if listed in entries else json.dumps({listed: source})
        _run_service(opened, url, setting)
        client = opened.enter_context(connect(url))
        undo = opened.enter_context(ExitStack())  # what a failure takes back
        if is_file:
            pair, rows = _pair_of_files(client, Path(source), Path(target))
        else:
            if place is not None:
                _connect(client, undo, store, source, place)
                source = store
            pair, rows = _pair_of_store(client, source, target)
        typer.echo("Measuring: this can take a minute.", err=True)
        answer = client.advice(
            source=pair["source"],
            target=pair["target"],
            anchor_set=pair["anchor_set"],
            corpus_size=items or rows,
            old_encoder_runs=old_encoder_runs,
            text_exists=texts_exist,
        )
        findings = client.anchor_sets.report(pair["anchor_set"])["findings"]
        undo.pop_all()
    if setting is not None:
        setting = without_password(setting)
    more = {"store": None if is_file else source, "setting": setting, "url": url}
    answer = {**pair, **answer, **more, "findings": findings}
    if as_json:
        print_json(answer)
    else:
        typer.echo("\n".join(_report(answer)))


def kind_of(address: str) -> str:
    """Return the kind of the store at an address. Raises typer.BadParameter."""
    scheme, separator, _ = address.partition("://")
    if separator and urlsplit(address).netloc.endswith(":19530"):
        return "milvus"
    if separator and scheme.lower() in SCHEMES:
        return SCHEMES[scheme.lower()]
    place = Path(address)
    if place.is_file() and place.open("rb").read(6) == b"SQLite":
        return "sqlite-vec"
    for kind, sign in SIGNS.items():
        if place.is_dir() and any(place.glob(sign)):
            return kind
    shown = f"{scheme}://..." if separator else address  # what follows may hold a password
    raise typer.BadParameter(f"{shown} is no store that Anchorage knows. Pass --kind.")


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


def _pair_of_store(client: Client, store: str, target: str) -> tuple[dict[str, str], int]:
    """Return a pair with anchors from a store's texts, and the store's rows."""
    there = client.stores.get(store)
    if target not in {row["name"] for row in client.encoders.list()}:
        model, target = target, _name(target.rstrip("/").rpartition("/")[2])
        client.encoders.get_or_create(target, kind="sentence-transformers", model=model)
    name = f"{store}-{target}"
    typer.echo(f"{target} embeds texts of {store}: this can take some minutes.", err=True)
    client.anchor_sets.get_or_create(name, store=store, encoders=[target])
    return {"source": there["encoder"], "target": target, "anchor_set": name}, there["rows"]


def _pair_of_files(client: Client, old: Path, new: Path) -> tuple[dict[str, str], int]:
    """Return a pair with anchors from two files, and their rows. Raises typer.BadParameter."""
    import numpy as np

    files = {f"{_name(old.stem)}-old": _read(old), f"{_name(new.stem)}-new": _read(new)}
    source, target = files
    if len(files[source]) != len(files[target]):
        raise typer.BadParameter(
            f"{old} has {len(files[source]):,} rows and {new} {len(files[target]):,}. Row i must "
            "be the same item in both."
        )
    count = len(files[source])
    chosen = np.unique(np.linspace(0, count - 1, min(MAX_ANCHORS, count)).astype(int))
    anchors = {name: np.ascontiguousarray(rows[chosen]) for name, rows in files.items()}
    digest = hashlib.sha256(b"".join(rows.tobytes() for rows in anchors.values())).hexdigest()
    name = f"{source}-{target}-{digest[:8]}"  # other vectors are another set
    for encoder, rows in anchors.items():
        client.encoders.get_or_create(encoder, dim=rows.shape[1])
    client.anchor_sets.get_or_create(name, embeddings=anchors)
    return {"source": source, "target": target, "anchor_set": name}, count


def _read(file: Path) -> NDArray[np.float32]:
    """Return the rows of an npy file. Raises typer.BadParameter."""
    import numpy as np

    try:
        rows: NDArray[Any] = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file} is no npy file: {error}") from None
    if rows.ndim != 2 or rows.dtype.kind != "f":
        raise typer.BadParameter(f"{file} must hold floats with one vector in each row.")
    return rows.astype(np.float32, copy=False)


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
    if answer["store"]:
        yield f'print(pair.search("{answer["store"]}", inputs=["a question"]).results[0].ids)\n```'
    else:
        yield "translated = pair.translate(vectors)  # of the old encoder\n```"
