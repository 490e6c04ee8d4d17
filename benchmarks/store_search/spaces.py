"""How often the encoder of a sample of 50 rows is found, missed or mistaken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import torch

from app.maths.anchors.space_match import match_space
from benchmarks.common import DATA
from benchmarks.relevance.collection import JudgedCollection
from benchmarks.synthetic import Matrix

SAMPLED, ANCHORS, DRAWS = 50, 150, 3


def measure(data: JudgedCollection) -> list[dict[str, Any]]:
    """Counts of verdicts, of each collection."""
    texts = load_texts()
    sections = [
        row("Cranfield, e5 and minilm", matches(same_dim(data.documents))),
        row("250 texts, 13 encoders", matches(same_dim(texts))),
        row("250 texts, encoder not registered", matches(same_dim(texts), registered=False)),
    ]
    if "all-MiniLM-L6-v2" in texts:
        sections.append(row("anchors of another corpus", foreign(data, texts)))
    return sections


def load_texts() -> dict[str, Matrix]:
    """The 250 texts by each encoder; empty without the data."""
    files = sorted((DATA / "text-embeddings").glob("*.npy"))
    return {file.stem: np.load(file, allow_pickle=False) for file in files}


def same_dim(encoders: Mapping[str, Matrix]) -> list[dict[str, Matrix]]:
    """The encoders in groups of one dimension, those with at least two."""
    groups: dict[int, dict[str, Matrix]] = {}
    for name, vectors in encoders.items():
        groups.setdefault(vectors.shape[1], {})[name] = vectors
    return [group for group in groups.values() if len(group) > 1]


def matches(groups: list[dict[str, Matrix]], *, registered: bool = True) -> Counter[str]:
    """Verdicts on every ordered pair of encoders (true, expected), rows apart from the anchors."""
    found: Counter[str] = Counter()
    for draw in range(DRAWS):
        for group in groups:
            size = len(next(iter(group.values())))
            order = np.random.default_rng(draw).permutation(size)
            known, rows = order[:ANCHORS], order[ANCHORS : ANCHORS + SAMPLED]
            for true, expected in product(group, group):
                anchors = {
                    name: as_tensor(vectors[known])
                    for name, vectors in group.items()
                    if registered or name != true
                }
                if expected in anchors:
                    sample = as_tensor(group[true][rows])
                    found[outcome(sample, anchors, expected, true)] += 1
    return found


def foreign(data: JudgedCollection, texts: Mapping[str, Matrix]) -> Counter[str]:
    """Verdicts on samples of Cranfield by MiniLM, with anchors of the texts, and the reverse."""
    found: Counter[str] = Counter()
    name = "all-MiniLM-L6-v2"
    relatives = {each: vectors for each, vectors in texts.items() if vectors.shape[1] == 384}
    for draw in range(DRAWS):
        generator = np.random.default_rng(draw)
        rows = generator.permutation(data.size)
        few = generator.permutation(len(texts[name]))[:ANCHORS]
        anchors = {each: as_tensor(vectors[few]) for each, vectors in relatives.items()}
        for expected in relatives:
            sample = as_tensor(data.documents["minilm"][rows[:SAMPLED]])
            found[outcome(sample, anchors, expected, name)] += 1
        both = {each: as_tensor(data.documents[each][rows[:ANCHORS]]) for each in ("minilm", "e5")}
        for expected in both:
            sample = as_tensor(texts[name][few[:SAMPLED]])
            found[outcome(sample, both, expected, "minilm")] += 1
    return found


def outcome(
    sample: torch.Tensor, anchors: Mapping[str, torch.Tensor], expected: str, true: str
) -> str:
    """Whether the expected encoder was the true one, and what the check said.

    accepted: the expected encoder. found: the true one, in place of the expected. misnamed: a third
    """
    match = match_space(sample, anchors, expected)
    kind = "true" if expected == true else "other"
    if match.verdict == "unknown":
        return f"{kind}: unknown"
    if match.verdict == "matches":
        return f"{kind}: accepted"
    return f"{kind}: {'found' if match.likeliest == true else 'misnamed'}"


def row(name: str, found: Counter[str]) -> dict[str, Any]:
    """The counts of one collection."""
    return {"data": name, **{key: found[key] for key in sorted(found)}}


def as_tensor(vectors: Matrix) -> torch.Tensor:
    return torch.from_numpy(np.asarray(vectors, dtype=np.float32))
