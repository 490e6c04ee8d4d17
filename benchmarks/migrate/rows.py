"""A million different rows whose vectors by both encoders are known.

Sentences are embedded by both encoders. A row is one sentence, or a document of two or three,
represented in each space by the normalised mean of its sentences' vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.migrate.corpus import Sentence
from benchmarks.migrate.vectors import Vectors

Numbers = NDArray[np.int64]

QUERIES = 1_000
ANCHORS = 1_000
NEAR = 10


@dataclass(frozen=True, eq=False)
class Collection:
    """Rows in a random order, of which the first ones are loaded and later ones are written.

    members  (n, 3) numbers of sentences; -1 where a document has fewer
    queries  (q,) numbers of sentences that no document has
    vectors  by encoder: (s, d) unit vectors of the sentences
    """

    sentences: Sequence[Sentence]
    members: Numbers
    queries: Numbers
    vectors: dict[str, Vectors]

    def embed(self, encoder: str, rows: Numbers) -> Vectors:
        """Unit vectors (r, d) of these rows."""
        parts = self.members[rows]
        sums = self.vectors[encoder][parts] * (parts >= 0)[..., None]
        mean = sums.sum(1)
        return np.ascontiguousarray(mean / np.linalg.norm(mean, axis=1, keepdims=True))

    def text(self, row: int) -> str:
        """Return the sentences of a row."""
        return " ".join(self.sentences[part].line for part in self.members[row] if part >= 0)

    def embed_texts(self, encoder: str, texts: Sequence[str]) -> Vectors:
        """Unit vectors (t, d) of texts of rows. Any other text has the vector of the first row."""
        places = np.array([self._places.get(text, 0) for text in texts])
        return self.embed(encoder, places)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {self.text(row): row for row in range(len(self.members))}

    def corpus(self, row: int) -> str:
        """Return the corpus of a row's first sentence."""
        return self.sentences[int(self.members[row, 0])].corpus

    def anchors(self, rows: int) -> Numbers:
        """Rows below `rows` that are single sentences: at most ANCHORS."""
        single = np.flatnonzero(self.members[:rows, 1] < 0)
        return single[:ANCHORS]


def collect(
    sentences: Sequence[Sentence], vectors: dict[str, Vectors], size: int, seed: int = 0
) -> Collection:
    """Return `size` different rows.

    First all sentences, then documents of neighbours, then of sentences of one text that are at
    most NEAR apart, then of one corpus.
    """
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(sentences))
    queries, used = np.sort(order[:QUERIES]), np.sort(order[QUERIES:])
    texts = _groups(sentences, used, lambda each: f"{each.corpus}/{each.text}")
    corpora = _groups(sentences, used, lambda each: each.corpus)
    single = np.stack([used, *[np.full(len(used), -1)] * 2], axis=1)
    found = _different([single, *_neighbours(texts), *_near(texts, draw)])
    while len(found) < size:
        found = _different([found, *_random(corpora, size - len(found), draw)])
    kept = found[:size]
    return Collection(sentences, kept[draw.permutation(len(kept))], queries, vectors)


def _groups(sentences: Sequence[Sentence], used: Numbers, key: object) -> list[Numbers]:
    groups: dict[str, list[int]] = {}
    for number in used:
        groups.setdefault(key(sentences[number]), []).append(int(number))  # type: ignore[operator]
    return [np.array(group) for group in groups.values()]


def _different(parts: Sequence[Numbers]) -> Numbers:
    """The rows of the parts, each set of sentences once, in the order of their first place."""
    rows = np.concatenate(parts)
    _, first = np.unique(np.sort(rows, axis=1), axis=0, return_index=True)
    return rows[np.sort(first)]


def _neighbours(texts: Sequence[Numbers]) -> list[Numbers]:
    found = []
    for width in (2, 3):
        windows = [
            np.lib.stride_tricks.sliding_window_view(t, width) for t in texts if len(t) >= width
        ]
        rows = np.concatenate(windows)
        found.append(np.pad(rows, ((0, 0), (0, 3 - width)), constant_values=-1))
    return found


def _near(texts: Sequence[Numbers], draw: np.random.Generator) -> list[Numbers]:
    """For each sentence, documents with one or two that are at most NEAR places further on."""
    found = []
    for _ in range(4):
        for text in texts:
            here = np.arange(len(text))
            second = here + draw.integers(1, NEAR, len(text))
            third = second + draw.integers(1, NEAR, len(text))
            pairs, triples = second < len(text), third < len(text)
            found.append(_rows(text, here[pairs], second[pairs]))
            found.append(_rows(text, here[triples], second[triples], third[triples]))
    return [np.concatenate(found)]


def _random(corpora: Sequence[Numbers], missing: int, draw: np.random.Generator) -> list[Numbers]:
    total = sum(len(corpus) for corpus in corpora)
    found = []
    for corpus in corpora:
        count = missing * len(corpus) // total // 2 + 1
        picks = draw.integers(0, len(corpus), (3, count))
        pairs, triples = picks[:2], picks
        pairs = pairs[:, pairs[0] != pairs[1]]
        triples = triples[:, (np.diff(np.sort(triples, axis=0), axis=0) > 0).all(0)]
        found += [_rows(corpus, *pairs), _rows(corpus, *triples)]
    mixed = np.concatenate(found)
    return [mixed[draw.permutation(len(mixed))]]


def _rows(group: Numbers, *places: Numbers) -> Numbers:
    rows = np.full((len(places[0]), 3), -1, dtype=np.int64)
    for column, place in enumerate(places):
        rows[:, column] = group[place]
    return rows
