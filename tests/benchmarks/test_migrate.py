"""The benchmark of a pgvector table: its rows, and how it knows what each row must be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.migrate import recall, truth
from benchmarks.migrate.corpus import Sentence
from benchmarks.migrate.rows import QUERIES, collect

ENCODERS = ("first", "second")


@pytest.fixture(scope="module")
def rows():
    draw = np.random.default_rng(0)
    sentences = [
        Sentence(f"corpus {number % 3}", str(number // 30), f"sentence {number}")
        for number in range(QUERIES + 600)
    ]
    vectors = {}
    for name in ENCODERS:
        raw = draw.normal(size=(len(sentences), 8)).astype(np.float32)
        vectors[name] = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    return collect(sentences, vectors, 5_000)


def test_rows_are_different_and_have_no_query(rows):
    members = np.sort(rows.members, axis=1)
    assert len(np.unique(members, axis=0)) == len(members) == 5_000
    assert not np.isin(rows.members, rows.queries).any()
    assert {1, 2, 3} == set((rows.members >= 0).sum(1).tolist())
    assert (rows.members[rows.anchors(5_000), 1] < 0).all()


def log(path: Path, *entries: dict[str, object]) -> Path:
    common = {"due": 5.0, "s": 0.1, "error": None, "encoder": "first", "source": None}
    path.write_text("".join(json.dumps({**common, **each}) + "\n" for each in entries))
    return path


def test_writes_are_replayed_in_their_order(tmp_path):
    found = truth.replay(
        log(
            tmp_path / "log",
            {"kind": "search"},
            {"kind": "insert", "row": 10, "source": 10},
            {"kind": "payload", "row": 10},
            {"kind": "vector", "row": 1, "source": 11, "encoder": "second"},
            {"kind": "delete", "row": 2},
            {"kind": "delete", "row": 3, "error": "OperationalError"},
        ),
        4,
        ENCODERS,
        [],
    )
    assert found.source == {0: 0, 1: 11, 3: 3, 10: 10}
    assert (found.revision, found.by_new) == ({10: 1}, {1})
    assert (found.unsure, found.failed) == ({3}, 1)


def test_a_vector_that_is_written_during_a_switch_is_not_judged(tmp_path):
    write = {"kind": "vector", "row": 0, "source": 9}
    file = log(tmp_path / "log", write, {"kind": "payload", "row": 1})
    assert truth.replay(file, 2, ENCODERS, [(4.9, 5.05)]).unsure == {0}
    assert truth.replay(file, 2, ENCODERS, [(5.2, 6.0)]).unsure == set()


def test_a_wrong_vector_is_found(rows):
    ids = np.arange(100)
    vectors = rows.embed("first", ids)
    expected = truth.Expected({int(each): int(each) for each in ids})
    want = truth.wanted(rows, ENCODERS, 0, lambda some: some, np.zeros(0, np.int64))
    assert truth.compare_vectors((ids, vectors), expected, want)["same_bits"] == 100
    vectors[7, 3] += 1e-3
    found = truth.compare_vectors((ids, vectors), expected, want)
    assert (found["same_bits"], found["wrong"]) == (99, 1)


def test_the_other_side_is_translated_unless_the_row_is_an_anchor(rows):
    sources, by_new = np.array([0, 1, 2]), np.array([False, True, False])
    want = truth.wanted(rows, ENCODERS, 1, lambda some: -some, np.array([2]))
    found = want(sources, by_new)
    assert np.array_equal(found[0], -rows.embed("first", sources[:1])[0])
    assert np.array_equal(found[1:], rows.embed("second", sources[1:]))


def test_neighbours_are_those_of_one_large_product(rows, monkeypatch):
    monkeypatch.setattr(recall, "BLOCK", 700)
    vectors = rows.embed("first", np.arange(5_000))
    queries = rows.vectors["first"][rows.queries[:20]]
    found = recall.nearest(queries, np.arange(5_000) + 3, lambda some: vectors[some])
    expected = np.argsort(-(queries @ vectors.T), axis=1)[:, :10] + 3
    assert recall.overlap(found, expected) == 1.0
