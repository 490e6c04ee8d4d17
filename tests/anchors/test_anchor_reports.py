"""/anchor-sets/{name}/report."""

from __future__ import annotations

import typing

import numpy as np
import pytest

from app.anchors import findings as anchor_findings
from app.demo.pack import load_pack

PACK = load_pack()
SIZE = 300
#: the pack's encoders in the order of their sets here
NAMES = ["minilm3-512", "minilm6-384", "static-256"]
VECTORS = {name: PACK.vectors[name].numpy() for name in NAMES}


@pytest.fixture
def make(client, packed):
    """A set `s` of these vectors by encoder name."""

    def build(embeddings, name="s"):
        for encoder, vectors in embeddings.items():
            if client.get(f"/encoders/{encoder}").status_code == 404:
                assert (
                    client.post(
                        "/encoders", json={"name": encoder, "dim": np.shape(vectors)[1]}
                    ).status_code
                    == 201
                )
        body = {
            "name": name,
            "embeddings": {encoder: packed(vectors) for encoder, vectors in embeddings.items()},
        }
        answer = client.post("/anchor-sets", json=body)
        assert answer.status_code == 201, answer.text
        return client

    return build


@pytest.fixture
def real(make):
    """A service with 300 sentences by the pack's three encoders as the set `s`."""
    return make({name: VECTORS[name][:SIZE] for name in NAMES})


def report(client, name="s"):
    answer = client.get(f"/anchor-sets/{name}/report")
    assert answer.status_code == 200, answer.text
    return answer.json()


def finding(report, code):
    [found] = [each for each in report["findings"] if each["code"] == code]
    return found


def codes(report):
    return [each["code"] for each in report["findings"]]


def noise(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


# --- the report -----------------------------------------------------------------------------------


def test_real_parallel_anchors_have_nothing_wrong_with_them(real):
    found = report(real)
    assert (found["anchor_set"], found["size"]) == ("s", SIZE)
    assert [(space["encoder"], space["dim"]) for space in found["spaces"]] == [
        (name, VECTORS[name].shape[1]) for name in NAMES
    ]
    for space in found["spaces"]:
        assert space["rank"] == min(SIZE - 1, space["dim"])
        assert (space["duplicate_count"], space["at_mean_count"]) == (0, 0)
    assert found["pairs"] == [
        {"encoders": [NAMES[0], NAMES[1]], "verdict": "related"},
        {"encoders": [NAMES[0], NAMES[2]], "verdict": "related"},
        {"encoders": [NAMES[1], NAMES[2]], "verdict": "related"},
    ]
    assert (found["spaces_left_out"], found["pairs_left_out"]) == (0, 0)
    assert set(codes(found)) <= {"too-few-anchors"}
    assert {each["severity"] for each in found["findings"]} <= {"info"}


def test_an_encoder_of_other_rows_is_unrelated_to_the_others(make):
    static = np.random.default_rng(0).permutation(VECTORS["static-256"][:SIZE])
    found = report(make({"minilm6-384": VECTORS["minilm6-384"][:SIZE], "static-256": static}))
    assert found["pairs"][0]["verdict"] == "unrelated"
    said = found["findings"][0]
    assert (said["code"], said["severity"]) == ("unrelated-spaces", "error")
    assert "create a new set" in said["detail"]
    assert said["encoders"] == ["minilm6-384", "static-256"]


def test_rows_that_add_nothing_are_named(make):
    vectors = noise(1, 80, 6)
    vectors[10], vectors[11] = vectors[3], vectors[3]
    found = report(make({"a": vectors}))
    assert finding(found, "duplicates") == {
        "code": "duplicates",
        "severity": "warning",
        "detail": "these anchors equal an earlier one and add nothing. Replace them",
        "encoders": ["a"],
        "rows": [10, 11],
        "count": 2,
    }


def test_every_code_is_documented():
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "how-to" / "anchor-sets.md").read_text()
    assert [
        code for code in typing.get_args(anchor_findings.FindingCode) if f"`{code}`" not in text
    ] == []
