"""20,000 sentences of three public corpora by two encoders, and translators between these."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.common import DATA, Missing
from benchmarks.quality.data import ENCODERS_ORIGIN, embedded

ROWS, ANCHORS = 20_000, 1_000
#: static word vectors, 256 dimensions; a transformer, 384 dimensions
OLD, NEW = "static-256", "minilm6-384"

Vectors = np.ndarray[Any, np.dtype[np.float32]]
TranslateVectors = Callable[[Sequence[Any], Vectors], Vectors]


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows of a collection: ids (n), vectors (n, d), payloads (n)."""

    ids: Sequence[int]
    vectors: Vectors
    payloads: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class World:
    """The rows by the old encoder, their native new vectors (n, e), and both translators."""

    rows: StoredRows
    native: Vectors
    translate: TranslateVectors
    translate_back: TranslateVectors


def sentences() -> list[tuple[str, str]]:
    """Sentences with the name of their corpus, in the order of `stored`. Raises Missing."""
    found = []
    for part in ("train", "test"):
        path = DATA / f"banking77/{part}.csv"
        if not path.exists():
            raise Missing(f"{path}: from github.com/PolyAI-LDN/task-specific-datasets")
        with path.open(encoding="utf-8", newline="") as file:
            found += [(row["text"], "banking77") for row in csv.DictReader(file)]
    for name in ("train_5500.label", "TREC_10.label"):
        path = DATA / "trec" / name
        if not path.exists():
            raise Missing(f"{path}: the question classification data of UIUC")
        lines = path.read_text(encoding="latin-1").splitlines()
        found += [(line.partition(" ")[2], "trec") for line in lines]
    return found


def reviews(count: int) -> list[tuple[str, str]]:
    """Sentences of film reviews, which complete the number of rows. Raises Missing."""
    archive = DATA / "corpora/sentence_polarity.zip"
    if not archive.exists():
        raise Missing(f"{archive}: the package sentence_polarity of nltk_data")
    with zipfile.ZipFile(archive) as files:
        lines = files.read("sentence_polarity/rt-polarity.pos").decode("latin-1").splitlines()
    return [(line.strip(), "sentence_polarity") for line in lines[:count]]


def stored(encoder: str) -> Vectors:
    """Return the vectors of `sentences` that the data holds. Raises Missing."""
    parts = []
    for corpus in ("banking77", "trec"):
        path = DATA / f"encoders/emb/{corpus}.{encoder}.npz"
        if not path.exists():
            raise Missing(f"{path}: {ENCODERS_ORIGIN}")
        with np.load(path, allow_pickle=False) as found:
            parts += [found["train"], found["test"]]
    return np.concatenate(parts).astype(np.float32)


def load(count: int = ROWS) -> World:
    """Return the rows in a random order. Raises Missing."""
    every = sentences()
    rest = reviews(max(0, count - len(every)))
    both = []
    for name in (OLD, NEW):
        extra = embedded(name, [text for text, _ in rest], of="stores") if rest else None
        vectors = stored(name)
        if extra is not None:
            vectors = np.concatenate([vectors, np.asarray(extra, np.float32)])
        both.append(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
    order = np.random.default_rng(19).permutation(len(every) + len(rest))[:count]
    chosen = [(every + rest)[place] for place in order]
    texts = [text for text, _ in chosen]
    old, new = (each[order] for each in both)
    payloads = [
        {"text": text, "corpus": corpus, "number": number, "words": text.split()[:3]}
        for number, (text, corpus) in enumerate(chosen)
    ]
    rows = StoredRows(range(len(texts)), old, payloads)
    return World(rows, new, _translator(old, new), _translator(new, old))


def _translator(source: Vectors, target: Vectors) -> TranslateVectors:
    """Fit `graded` on the first ANCHORS rows; translations have length 1."""
    x, y = (fit_space(torch.from_numpy(each[:ANCHORS])) for each in (source, target))
    fitted = methods.fit("graded", x, y, methods.resolve("graded", {}, anchors=len(x.unit)))

    def translate(ids: Sequence[Any], vectors: Vectors) -> Vectors:
        found = apply(fitted, torch.from_numpy(np.ascontiguousarray(vectors))).vectors.numpy()
        return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)

    return translate
