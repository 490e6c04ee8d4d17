"""Warnings about whole answers: in JSON, and in a header of every format."""

from __future__ import annotations

import numpy as np
import pytest

HEADER = "Anchorage-Warnings"
RNG = np.random.default_rng(11)


def add_set(client, name: str, **embeddings: np.ndarray) -> None:
    body = {"name": name, "embeddings": {key: each.tolist() for key, each in embeddings.items()}}
    answer = client.post("/anchor-sets", json=body)
    assert answer.status_code == 201, answer.text


def translate(client, name: str, *, source="first", target="second", vectors=None, **more):
    vectors = RNG.normal(size=(3, 8)).tolist() if vectors is None else vectors
    answer = client.post(
        "/translate",
        json={
            "source": source,
            "target": target,
            "anchor_set": name,
            "vectors": vectors,
            **more,
        },
    )
    assert answer.status_code == 200, answer.text
    return answer


def codes(answer) -> list[str]:
    found = [each["code"] for each in answer.json()["warnings"]]
    assert answer.headers.get(HEADER, "") == ", ".join(found)
    assert all(each["detail"].endswith(".") for each in answer.json()["warnings"])
    return found


@pytest.fixture
def shifted(stocked, embeddings):
    """`stocked` with a set `shifted`, one side of which is shifted by a row."""
    add_set(
        stocked,
        "shifted",
        first=embeddings["first"],
        second=np.roll(embeddings["second"], 1, axis=0),
    )
    return stocked


def test_good_anchors_have_no_warnings_cold_or_warm(stocked):
    for answer in (translate(stocked, "items"), translate(stocked, "items")):
        assert codes(answer) == []
        assert HEADER not in answer.headers


def test_anchors_that_are_shifted_by_a_row_are_called_useless_cold_and_warm(shifted):
    assert codes(translate(shifted, "shifted")) == ["useless-anchors"]
    assert codes(translate(shifted, "shifted")) == ["useless-anchors"]
    assert codes(translate(shifted, "shifted", method="irp")) == ["useless-anchors"]
    assert translate(shifted, "shifted").json()["flags"] == []


def test_three_anchors_are_few(stocked, embeddings):
    add_set(stocked, "three", **{name: each[:3] for name, each in embeddings.items()})
    assert codes(translate(stocked, "three")) == ["few-anchors"]
    relative = stocked.post(
        "/translate",
        json={
            "target": "second",
            "anchor_set": "three",
            "relative": RNG.normal(size=(2, 3)).tolist(),
        },
    )
    assert codes(relative) == ["few-anchors"]


# --- the same encoder on both sides ---------------------------------------------------------------


def test_auto_returns_vectors_of_the_targets_own_encoder_unchanged(stocked):
    vectors = RNG.normal(size=(5, 8)).astype(np.float32)
    for _ in range(2):
        answer = translate(stocked, "items", target="first", vectors=vectors.tolist())
        body = answer.json()
        assert np.array_equal(np.array(body["vectors"], np.float32), vectors)
        assert (body["method"], body["options"], body["translator"]) == ("identity", {}, None)
        assert codes(answer) == ["same-encoder"]
