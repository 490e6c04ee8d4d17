"""/anchor-sets/{name}/report."""

from __future__ import annotations

import typing

import numpy as np
import pytest

from app.demo.pack import load_pack
from app.services.anchors import anchor_findings, anchor_reports

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
    assert [(space["encoder"], space["dim"], space["rows_read"]) for space in found["spaces"]] == [
        (name, VECTORS[name].shape[1], SIZE) for name in NAMES
    ]
    for space in found["spaces"]:
        assert space["rank"] == min(SIZE - 1, space["dim"])
        assert 1 < space["participation_ratio"] < space["effective_rank"] < space["rank"]
        assert 0.6 < space["coverage"] < 0.8
        assert 0 < space["isolated"] < SIZE / 2
        assert space["precision"] == "half"
        assert (space["duplicate_count"], space["collinear_count"], space["at_mean_count"]) == (
            0,
            0,
            0,
        )
    assert [space["normalised"] for space in found["spaces"]] == [False, True, False]
    assert [pair["encoders"] for pair in found["pairs"]] == [
        [NAMES[0], NAMES[1]],
        [NAMES[0], NAMES[2]],
        [NAMES[1], NAMES[2]],
    ]
    for pair in found["pairs"]:
        assert (pair["verdict"], pair["mismatched_count"], pair["rows_read"]) == (
            "related",
            0,
            SIZE,
        )
        assert pair["z"] > 20
        assert pair["agreement"] > 0.7
        assert 0.7 < pair["cka"] < 1
    assert (found["spaces_left_out"], found["pairs_left_out"]) == (0, 0)
    assert "error" not in {each["severity"] for each in found["findings"]}
    assert set(codes(found)) <= {"too-few-anchors", "outliers", "half-precision", "not-normalised"}
    assert finding(found, "not-normalised")["encoders"] == [NAMES[0], NAMES[2]]


@pytest.fixture
def beside(make):
    """The report of a set in which these vectors replace those of static-256."""
    return lambda static: report(
        make({"minilm6-384": VECTORS["minilm6-384"][:SIZE], "static-256": static})
    )


STATIC = VECTORS["static-256"][:SIZE]


def test_exchanged_rows_are_named_with_their_partners(beside):
    static, rows = STATIC.copy(), [17, 60, 140, 222, 271]
    static[rows] = static[np.roll(rows, 1)]
    found = beside(static)
    [pair] = found["pairs"]
    assert {each["row"] for each in pair["mismatched"]} == set(rows)
    partners = {each["row"]: each["fits"] for each in pair["mismatched"]}
    assert (
        sum(partners[row] == fits for row, fits in zip(rows, np.roll(rows, -1), strict=True)) >= 4
    )
    assert all(
        each["agreement"] < pair["agreement"] and each["better"] >= 0.02
        for each in pair["mismatched"]
    )
    said = found["findings"][0]
    assert (said["code"], said["severity"], said["rows"], said["count"]) == (
        "mismatched-rows",
        "error",
        rows,
        5,
    )
    assert said["encoders"] == ["minilm6-384", "static-256"]


@pytest.mark.parametrize(
    ("static", "says"),
    [
        (np.random.default_rng(0).permutation(STATIC), "create a new set"),
        (
            np.roll(STATIC, -1, axis=0),
            "agree with the rows of static-256 1 further up. Shift one side",
        ),
    ],
    ids=["shuffled", "shifted"],
)
def test_an_encoder_of_other_rows_is_unrelated_to_the_others(beside, static, says):
    found = beside(static)
    [pair] = found["pairs"]
    assert (pair["verdict"], pair["mismatched"]) == ("unrelated", [])
    said = found["findings"][0]
    assert (said["code"], said["severity"]) == ("unrelated-spaces", "error")
    assert says in said["detail"]


def test_rows_that_add_nothing_and_rows_that_stand_out_are_named(make):
    vectors = noise(1, 80, 6)
    vectors[10], vectors[11] = vectors[3], vectors[3]
    vectors[40] *= 1000
    found = report(make({"a": vectors}))
    assert finding(found, "duplicates") == {
        "code": "duplicates",
        "severity": "warning",
        "detail": "these anchors equal an earlier one and add nothing. Replace them",
        "encoders": ["a"],
        "rows": [10, 11],
        "count": 2,
    }
    assert finding(found, "outliers")["rows"] == [40]
    [outlier] = found["spaces"][0]["outliers"]
    assert outlier["row"] == 40
    assert finding(found, "one-encoder")["encoders"] == ["a"]
    half = noise(2, 30, 6)
    found = report(
        make({"b": np.concatenate([half, np.zeros((1, 6)), -half])}, name="balanced"), "balanced"
    )
    assert finding(found, "at-mean")["rows"] == [30]
    assert finding(found, "collinear")["count"] == 30
    assert finding(found, "collinear")["rows"] == list(range(31, 51))


def test_few_anchors_are_too_few_and_quantised_numbers_are_seen(make):
    vectors = VECTORS["minilm6-384"]
    found = report(make({"q": np.round(vectors[:SIZE] * 400)}, name="q"), "q")
    assert "quantised" in codes(found)
    assert found["spaces"][0]["precision"] == "quantised"
    found = report(make({"a": noise(3, 9, 5), "b": noise(4, 9, 3)}, name="nine"), "nine")
    [pair] = found["pairs"]
    assert (pair["verdict"], pair["z"], pair["agreement"], pair["mismatched"]) == (
        "unclear",
        None,
        None,
        [],
    )
    found = report(
        make({"minilm6-384": VECTORS["minilm6-384"][:40], "static-256": VECTORS["static-256"][:40]})
    )
    few = [each for each in found["findings"] if each["code"] == "too-few-anchors"]
    assert [(each["severity"], each["encoders"]) for each in few] == [
        ("warning", ["minilm6-384"]),
        ("warning", ["static-256"]),
    ]
    assert "low-coverage" in codes(found)
    assert found["pairs"][0]["verdict"] == "related"


def test_many_encoders_are_looked_at_up_to_a_bound_that_is_told(make):
    found = report(make({f"e{place}": noise(place, 12, 3) for place in range(18)}))
    assert (len(found["spaces"]), found["spaces_left_out"]) == (16, 2)
    assert (len(found["pairs"]), found["pairs_left_out"]) == (15, 18 * 17 // 2 - 15)
    assert "partly-read" in codes(found)


@pytest.fixture
def partly(monkeypatch):
    """Limits: two encoders are compared on 200 rows, and one is examined on 150."""
    monkeypatch.setattr(anchor_reports, "PAIR_WORK", 200**2 * (384 + 256))
    monkeypatch.setattr(anchor_reports, "SPACE_WORK", 2 * 150**2 * 384)


def test_the_rows_of_a_large_set_are_drawn_from_all_of_it_and_keep_their_numbers(beside, partly):
    static, rows = STATIC.copy(), list(range(270, 290))
    static[rows] = static[np.roll(rows, 7)]
    found = beside(static)
    [pair] = found["pairs"]
    assert ([each["rows_read"] for each in found["spaces"]], pair["rows_read"]) == ([150, 183], 200)
    named = [each["row"] for each in pair["mismatched"]]
    assert len(set(named) & set(rows)) >= 5
    assert len(set(named) - set(rows)) <= 2
    partners = dict(zip(rows, np.roll(rows, -7).tolist(), strict=True))
    assert sum(partners.get(each["row"]) == each["fits"] for each in pair["mismatched"]) >= 3
    assert "random anchors" in finding(found, "partly-read")["detail"]


def test_an_unknown_set_has_no_report(client, refused):
    refused(client.get("/anchor-sets/nothing/report"), 404, "anchor-set-not-found", "name")
    refused(client.get("/anchor-sets/a%20b/report"), 422, "invalid-request", "name")


def test_every_code_is_documented():
    from pathlib import Path

    text = (Path(__file__).parents[4] / "docs" / "how-to" / "anchor-sets.md").read_text()
    assert [
        code for code in typing.get_args(anchor_findings.FindingCode) if f"`{code}`" not in text
    ] == []
