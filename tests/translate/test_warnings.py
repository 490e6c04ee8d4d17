"""Warnings about whole answers: in JSON, and in a header of every format."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def add_set(stocked, embeddings):
    """Make a set of the encoders' changed vectors."""

    def post(name, change):
        changed = {encoder: change(encoder, rows).tolist() for encoder, rows in embeddings.items()}
        answer = stocked.post("/anchor-sets", json={"name": name, "embeddings": changed})
        assert answer.status_code == 201, answer.text

    return post


def codes(answer) -> list[str]:
    assert answer.status_code == 200, answer.text
    found = [each["code"] for each in answer.json()["warnings"]]
    assert answer.headers.get("Anchorage-Warnings", "") == ", ".join(found)
    assert ("Anchorage-Warnings" in answer.headers) == bool(found)
    return found


def test_good_anchors_have_no_warnings_cold_or_warm(ask):
    assert [codes(ask()), codes(ask())] == [[], []]


def test_anchors_that_are_shifted_by_a_row_are_called_useless_cold_and_warm(ask, add_set):
    add_set("shifted", lambda name, rows: np.roll(rows, name == "second", axis=0))
    for method in ("auto", "auto", "irp"):
        answer = ask(anchor_set="shifted", method=method)
        assert codes(answer) == ["useless-anchors"]
        assert answer.json()["flags"] == []


def test_three_anchors_are_few(ask, add_set):
    add_set("three", lambda name, rows: rows[:3])
    assert codes(ask(anchor_set="three")) == ["few-anchors"]
    relative = {"source": ..., "vectors": ..., "relative": [[0.5, 0.2, -0.1]]}
    assert codes(ask(anchor_set="three", **relative)) == ["few-anchors"]


def test_auto_returns_vectors_of_the_targets_own_encoder_unchanged(ask):
    vectors = np.random.default_rng(11).normal(size=(5, 8)).astype(np.float32)
    for _ in range(2):
        answer = ask(target="first", vectors=vectors.tolist())
        body = answer.json()
        assert np.array_equal(np.array(body["vectors"], np.float32), vectors)
        assert (body["method"], body["options"], body["translator"]) == ("identity", {}, None)
        assert codes(answer) == ["same-encoder"]
