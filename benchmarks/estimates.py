"""What reports estimate for an index of 1,000, 10,000 and 100,000 items, and what is found there.

Each case draws k anchors, and estimates from only these what 500 other items find in indexes of
other native vectors. Data, from ANCHORAGE_DATA: Banking77, Fashion-MNIST and word spaces
(encoders/), and the sentences of benchmarks/migrate/corpus.py by five encoders of different
families: static-256 (encoders/text), the token embeddings of the package wordllama, averages of two
kinds of word vectors (encoders/words), and latent semantic analysis (scikit-learn).
CIFAR-10 and Cranfield took no part in any choice.

    python -m benchmarks.estimates

Needs `pip install wordllama`.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.quality import crossfit
from app.maths.quality.estimate import estimate, more_partitions
from app.maths.quality.index_curves import measure_curves
from app.maths.quality.metrics import unit
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks import common
from benchmarks.migrate.corpus import sentences
from benchmarks.migrate.vectors import embedded

ANCHORS, INDEXES, QUERIES = (100, 300, 1000), (1_000, 10_000, 100_000), 500
#: vectors of the store that estimates with a sample see
SAMPLE = 2_000
SEEDS = (11, 12)
#: random indexes of at most 1,000 items, whose numbers vary
SMALL_INDEXES = 8
#: what `auto` means for retrieval
OPTIONS: methods.Options = {"decode_power": 0.25}
METHOD = "kernel"
MEASURES = {
    "recall": "recall@10",
    "mrr": "MRR",
}

PAIRS = {
    "banking77": [
        ("minilm6-384", "static-256"),
        ("static-256", "minilm3-512"),
        ("minilm3-512", "minilm6-384"),
    ],
    "words": [("w2v", "fasttext"), ("fasttext", "w2v")],
    "sentences": [
        ("static", "wordllama"),
        ("wordllama", "static"),
        ("lsa", "wordllama"),
        ("w2v", "static"),
        ("fasttext", "wordllama"),
        ("wordllama", "lsa"),
    ],
    "fashion-mnist": [("convnext-s0", "densenet-s0"), ("resnet10t-s1", "resnet10t-s0")],
    "cifar10": [
        ("mobilenet_v1_100", "mobilenet_v2_100_ptq"),
        ("squeezenet_v10", "mobilenet_v1_050"),
    ],
    "cranfield": [("use", "e5"), ("minilm", "use"), ("e5", "minilm")],
}


def main() -> None:
    arguments = common.parser(__doc__, common.RESULTS / "estimates.json")
    arguments.add_argument("--data", nargs="*", choices=PAIRS, default=list(PAIRS))
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    console = Console()
    cases: list[dict[str, Any]] = []
    for name in chosen.data:
        encoders = load(name)
        for seed, anchors, pair in itertools.product(SEEDS, ANCHORS, PAIRS[name]):
            if len(next(iter(encoders.values()))) < anchors + QUERIES + INDEXES[0] * 0.6:
                continue
            cases += measure(name, encoders[pair[0]], encoders[pair[1]], pair, anchors, seed)
    rows = summary(cases)
    tables = {"summary": by_index(cases), "rows": by_data(rows)}
    common.show(console, tables)
    common.write(chosen.json, tables, common.rounded({"rows": rows, "cases": cases}, 4))


def measure(
    name: str, x: Tensor, y: Tensor, pair: tuple[str, str], anchors: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Estimated and found numbers of one draw, for each index, with and without a sample."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 * seed + anchors))
    known, queries, others = order[:anchors], order[anchors:][:QUERIES], order[anchors + QUERIES :]
    sample = others[: SAMPLE if len(others) > 3 * SAMPLE else len(others) // 5]
    others = others[len(sample) :]
    options = methods.resolve(METHOD, OPTIONS, anchors=anchors)
    source, target = x[known].double(), y[known].double()
    translator = methods.fit(METHOD, fit_space(source), fit_space(target), options)
    centre = target.mean(dim=0).float()
    raw = apply(translator, x[queries]).vectors
    translated = unit(raw - centre).float()
    native, index = (unit(y[rows] - centre).float() for rows in (queries, others))
    bases = _bases(source, target, options, y[sample])
    for size in INDEXES:
        if len(others) < 0.6 * size or (size > INDEXES[0] and len(others) < 0.8 * size):
            break
        size = min(size, len(others))
        found = _found(translated, native, index, size)
        for kind, basis in bases.items():
            estimated = estimate(basis, size)
            yield {
                "data": name,
                "pair": list(pair),
                "anchors": anchors,
                "seed": seed,
                "index": size,
                "sample": len(sample) if kind == "sample" else 0,
                "measures": {
                    measure: [*estimated.measures[measure], value]
                    for measure, value in found.items()
                },
            }


def _bases(source: Tensor, target: Tensor, options: methods.Options, sample: Tensor) -> Any:
    held = crossfit.hold_out(METHOD, source, target, options)
    assert held is not None
    partitions = more_partitions(held, METHOD, source, target, options)
    return {
        kind: measure_curves(partitions, target, rows)
        for kind, rows in (("none", None), ("sample", sample))
    }


def _found(translated: Tensor, native: Tensor, index: Tensor, size: int) -> dict[str, float]:
    """Means over queries, and over random indexes where they are small."""
    repeats = min(SMALL_INDEXES, len(index) // size) if size <= INDEXES[0] else 1
    recall, ranks = [], []
    for start in range(repeats):
        items = index[start * size : (start + 1) * size]
        for rows in range(0, len(native), 100):
            queries = translated[rows : rows + 100]
            scores = queries @ items.T
            own = (queries * native[rows : rows + 100]).sum(dim=1)
            ranks.append(1.0 / (1 + (scores >= own[:, None]).sum(dim=1)).double())
            wanted = (native[rows : rows + 100] @ items.T).topk(10, dim=1).indices
            first = scores.topk(10, dim=1).indices
            shared = (wanted[:, :, None] == first[:, None, :]).sum(dim=(1, 2))
            recall.append(shared.double() / 10)
    return {"recall": float(torch.cat(recall).mean()), "mrr": float(torch.cat(ranks).mean())}


def summary(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each data set, number of anchors and size of the index, with sample or without."""
    keys = sorted(
        {(each["data"], _usual(each["index"]), each["anchors"]) for each in cases},
        key=lambda key: (list(PAIRS).index(key[0]), key[1:]),
    )
    rows = []
    for data, index, anchors in keys:
        own = [
            each
            for each in cases
            if (each["data"], _usual(each["index"]), each["anchors"]) == (data, index, anchors)
        ]
        row: dict[str, Any] = {"data": data, "index": index, "anchors": anchors}
        for kind in ("none", "sample"):
            chosen = [each for each in own if bool(each["sample"]) == (kind == "sample")]
            row["cases"] = len(chosen)
            row[kind] = compare(chosen)
        rows.append(row)
    return rows


def _usual(index: int) -> int:
    return min(INDEXES, key=lambda each: abs(np.log(each / index)))


def compare(cases: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By measure: means estimated and found, their mean absolute difference, and the share of the
    intervals that contain what was found.
    """
    figures = {}
    for name in MEASURES:
        numbers = [each["measures"][name] for each in cases]
        figures[name] = {
            "estimated": mean(value for value, _, _, _ in numbers),
            "found": mean(found for _, _, _, found in numbers),
            "absolute": mean(abs(value - found) for value, _, _, found in numbers),
        }
    return figures


def by_data(rows: list[dict[str, Any]]) -> common.Table:
    """Estimated and found, and their mean absolute difference, without and with a sample."""
    names = ("recall", "mrr")
    titles = [f"{MEASURES[name]}{kind}" for kind in ("", " with a sample") for name in names]
    table = [["data", "index", "anchors", *titles]]
    for row in rows:
        cells = []
        for kind in ("none", "sample"):
            for name in names:
                each = row[kind][name]
                cells.append(
                    f"{each['estimated']:.3f} / {each['found']:.3f} ({each['absolute']:.3f})"
                )
        table.append([row["data"], f"{row['index']:,}", f"{row['anchors']:,}", *cells])
    return table


def by_index(cases: list[dict[str, Any]]) -> common.Table:
    """Mean absolute differences in all cases of an index, how many intervals hold, and their mean
    width.
    """
    table = [["measure", "index", "difference", "inside", "width", "difference with a sample"]]
    table[0] += ["inside", "width"]
    for name, title in MEASURES.items():
        for index in INDEXES:
            row = [title, f"{index:,}"]
            for sampled in (False, True):
                numbers = [
                    each["measures"][name]
                    for each in cases
                    if abs(each["index"] / index - 1) < 0.5 and bool(each["sample"]) == sampled
                ]
                if numbers:
                    held = sum(low <= found <= high for _, low, high, found in numbers)
                    row += [
                        f"{mean(abs(value - found) for value, _, _, found in numbers):.3f}",
                        f"{held} of {len(numbers)}",
                        f"{mean(high - low for _, low, high, _ in numbers):.3f}",
                    ]
            if len(row) > 2:
                table.append(row)
    return table


# --- data -----------------------------------------------------------------------------------------


def load(name: str) -> dict[str, Tensor]:
    """Vectors of the same items by each encoder; items that two encoders cannot tell apart from
    others are left out.
    """
    folder = common.DATA / "encoders"
    if name == "banking77":
        read = {
            each: [
                np.load(folder / f"emb/banking77.{each}.npz")[part] for part in ("train", "test")
            ]
            for each in ("minilm6-384", "minilm3-512", "static-256")
        }
        vectors = {each: np.concatenate(parts) for each, parts in read.items()}
    elif name == "words":
        file = np.load(folder / "words/words.npz")
        vectors = {each: file[each] for each in ("w2v", "fasttext")}
    elif name == "fashion-mnist":
        file = np.load(folder / "emb/fmnist.npz")
        vectors = {
            each: np.concatenate([file[f"{each}/train"], file[f"{each}/test"]])
            for each in sorted({encoder for pair in PAIRS[name] for encoder in pair})
        }
    elif name == "cifar10":
        vectors = {}
        for each in sorted({encoder for pair in PAIRS[name] for encoder in pair}):
            file = np.load(common.DATA / "cifar10-embeddings" / f"{each}.npz")
            vectors[each] = np.concatenate([file[part] for part in ("train", "test")])
    elif name == "cranfield":
        vectors = {
            each: np.load(common.DATA / "cranfield" / f"{each}-docs.npy")
            for each in ("use", "e5", "minilm")
        }
    else:
        vectors = {each: _sentence_vectors(each) for each in SENTENCE_ENCODERS}
    keep = np.ones(len(next(iter(vectors.values()))), dtype=bool)
    for rows in vectors.values():
        first = np.zeros(len(rows), dtype=bool)
        first[np.unique(rows[:, :40].astype(np.float32), axis=0, return_index=True)[1]] = True
        keep &= first & (np.linalg.norm(rows.astype(np.float32), axis=1) > 1e-3)
    return {each: torch.from_numpy(rows[keep].astype(np.float32)) for each, rows in vectors.items()}


SENTENCE_ENCODERS = ("static", "wordllama", "lsa", "w2v", "fasttext")


def _sentence_vectors(encoder: str) -> np.ndarray[Any, Any]:
    texts = _sentences()
    if encoder == "static":
        return embedded(encoder, texts)
    path = common.CACHE / f"estimates-{encoder}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        make = {"wordllama": _wordllama, "lsa": _lsa}.get(encoder)
        vectors = _word_means(texts, encoder) if make is None else make(texts)
        np.save(path, vectors.astype(np.float16))
    return np.asarray(np.load(path))


def _sentences() -> list[str]:
    """Distinct sentences in lower case, in a random order."""
    made = [each.line.lower() for each in sentences()]
    random.Random(0).shuffle(made)  # noqa: S311
    return made


def _wordllama(texts: list[str]) -> np.ndarray[Any, Any]:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    spec = importlib.util.find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise common.Missing("wordllama is not installed: pip install wordllama")
    folder = Path(spec.origin).parent
    tokenizer = Tokenizer.from_file(str(folder / "tokenizers/l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    table = next(iter(load_file(folder / "weights/l2_supercat_256.safetensors").values()))
    rows = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return np.stack([table[ids].astype(np.float32).mean(axis=0) for ids in rows])


def _lsa(texts: list[str]) -> np.ndarray[Any, Any]:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    counts = TfidfVectorizer(min_df=10, sublinear_tf=True).fit_transform(texts)
    return np.asarray(TruncatedSVD(200, random_state=0).fit_transform(counts))


def _word_means(texts: list[str], kind: str) -> np.ndarray[Any, Any]:
    """Means of unit word vectors, rare words weighing more."""
    file = np.load(common.DATA / "encoders/words/words.npz")
    place = {word: row for row, word in enumerate(file["words"])}
    vectors = file[kind].astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    counts = file["count_w2v"] + file["count_fasttext"]
    vectors *= (1e-3 / (1e-3 + counts / counts.sum()))[:, None]
    made = np.zeros((len(texts), vectors.shape[1]), np.float32)
    for row, text in enumerate(texts):
        known = [place[word] for word in re.findall(r"[a-z']+", text) if word in place]
        if known:
            made[row] = vectors[known].mean(axis=0)
    return made


if __name__ == "__main__":
    main()
