"""Runs the demo: an index whose model is retired, searched with a new model over HTTP."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from anchorage_client import Client
from app.demo import DemoError
from app.demo.pack import OLD_MODEL, Pack, load_pack
from app.demo.server import free_port, server

#: torch threads of the demo and of the server: on a busy machine more threads mostly wait for each
#: other
DEMO_THREADS = 1

#: what the demo calls its encoders, anchor set and store
OLD, NEW, ANCHORS, STORE = "old", "new", "bridge", "docs"

NEW_MODEL = "all-MiniLM-L6-v2"

#: the name and the folder of the store's address
ADDRESS, FOLDER, COLLECTION = "demo", "index", "questions"

#: the options of the table, in words, and what each needs
OPTIONS = {
    "keep": ("old model, old index", "the old model"),
    "fuse": ("old and translated scores", "the old model"),
    "cascade": ("translated scores", "the index"),
    "native-cascade": ("the new model reads 100 texts", "the texts"),
    "re-embed": ("new model, new index", "all texts"),
}

#: results of a query that the demo prints
SHOWN = 3


def demo(*, json_path: Path | None, sentence: str) -> None:
    """Run all parts and print their results. Raises DemoError.

    json_path  file of the numbers
    """
    console = Console()
    began = time.monotonic()
    torch.set_num_threads(DEMO_THREADS)
    pack = load_pack()
    with tempfile.TemporaryDirectory(prefix="anchorage-demo-") as folder:
        index = Path(folder) / FOLDER
        write_store(index, pack)
        console.print(
            f"Your index: {len(pack.sentences[pack.index]):,} questions to a bank, in a LanceDB "
            f"table. Their vectors are by {OLD_MODEL}, which is retired.\n"
            f"The new model is {NEW_MODEL}."
        )
        variables = {
            **{key: each for key, each in os.environ.items() if not key.startswith("ANCHORAGE_")},
            "ANCHORAGE_THREADS": str(DEMO_THREADS),
            "ANCHORAGE_STORES": json.dumps({ADDRESS: str(index)}),
        }
        with (
            server(Path(folder) / "data", free_port(), variables) as url,
            Client(url, timeout=120) as client,
        ):
            console.print(f"The service answers at {url} after {time.monotonic() - began:.0f} s.")
            connect_store(client, pack, console)
            search(client, pack, sentence, console)
            report = measure(client, pack, console)
    console.print(
        "\nWith your own index: [bold]anchorage migrate --help[/bold]\n"
        f"Done in {time.monotonic() - began:.0f} s."
    )
    if json_path is not None:
        about = "made by `anchorage demo --json`; nDCG@10 on questions of the same intent"
        json_path.write_text(json.dumps({"about": about, **report}, indent=1) + "\n")


def write_store(folder: Path, pack: Pack, *, rows: int | None = None) -> None:
    """Write the index as a program of the user's would: texts, and vectors by the old model.

    rows  the first of the index; None: all

    Raises DemoError without LanceDB.
    """
    try:
        import lancedb
    except ImportError:
        raise DemoError("It needs LanceDB: pip install 'anchorage-server[demo]'") from None
    pairs = zip(pack.sentences[pack.index][:rows], pack.old[pack.index][:rows], strict=True)
    table = [
        {"id": id_, "text": text, "vector": vector.tolist()}
        for id_, (text, vector) in enumerate(pairs)
    ]
    lancedb.connect(str(folder)).create_table(COLLECTION, table)


def connect_store(client: Client, pack: Pack, console: Console) -> None:
    """Register both encoders, the store, and the anchors."""
    client.encoders.create(OLD, dim=pack.old.shape[1])
    client.encoders.create(NEW, kind="sentence-transformers", model=NEW_MODEL)
    embeddings = {OLD: pack.old[pack.anchors].half(), NEW: pack.new[pack.anchors].half()}
    client.anchor_sets.create(ANCHORS, embeddings=embeddings)
    store: dict[str, Any] = {"kind": "lancedb", "address": ADDRESS, "text_field": "text"}
    connected = client.stores.create(STORE, encoder=OLD, collection=COLLECTION, **store)
    console.print(
        f"It reads the index, and writes nothing to it: {connected['rows']:,} rows. "
        f"{len(pack.old[pack.anchors])} other questions, embedded by both models, are the anchors."
    )


def search(client: Client, pack: Pack, sentence: str, console: Console) -> None:
    """Search the store with a sentence of the new model, and show what the old model finds."""
    pair = client.pair(OLD, NEW, ANCHORS)
    rankings = pair.search(STORE, inputs=[sentence], k=SHOWN)
    console.print(f"\n[bold]{sentence}[/bold]")
    unit = torch.nn.functional.normalize
    if sentence in pack.sentences:
        row = pack.sentences.index(sentence)
        cosines = unit(pack.old[pack.index], dim=1) @ unit(pack.old[row], dim=0)
        _print_results("the old model", cosines.topk(SHOWN).indices.tolist(), pack, console)
    found = [int(id_) for id_ in rankings.results[0].ids]
    _print_results("the new model, in the old index", found, pack, console)


def _print_results(title: str, ids: Sequence[int], pack: Pack, console: Console) -> None:
    console.print(f"  {title}:")
    first = pack.index.start
    for place, id_ in enumerate(ids, start=1):
        intent = pack.classes[int(pack.labels[first + id_])]
        text = f"    {place}. {pack.sentences[first + id_]}  [dim]{intent}[/dim]"
        console.print(text, soft_wrap=True)


def measure(client: Client, pack: Pack, console: Console) -> dict[str, Any]:
    """Measure the options on judged queries: a question with the same intent is relevant."""
    same = pack.labels[pack.queries][:, None] == pack.labels[pack.index]
    judgements = [
        {"query": query, "document": document} for query, document in same.nonzero().tolist()
    ]
    answer = client.pair(OLD, NEW, ANCHORS).evaluate(
        old_queries=pack.old[pack.queries].half(),
        queries=pack.new[pack.queries].half(),
        documents=pack.old[pack.index].half(),
        native_documents=pack.new[pack.index].half(),
        judgements=judgements,
    )
    results = {name: answer["results"][name] for name in OPTIONS}
    table = Table(
        title=f"{len(same)} judged questions: those with the same intent are relevant",
        title_style="bold",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for column in ("search", "needs"):
        table.add_column(column)
    for column in ("nDCG@10", "gain (95 %)"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, (words, needs) in OPTIONS.items():
        table.add_row(words, needs, f"{results[name]['ndcg_10']:.3f}", gain(results[name]))
    console.print()
    console.print(table)
    return {
        "queries": len(same),
        "documents": same.shape[1],
        "anchors": len(pack.old[pack.anchors]),
        "results": results,
    }


def gain(result: Mapping[str, Any]) -> str:
    over = result["over_keep"]
    if over is None:
        return ""
    low, high = over["intervals"]["ndcg_10"]
    return f"{low:+.2f} to {high:+.2f}"
