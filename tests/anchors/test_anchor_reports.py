"""/anchor-sets/{name}/report."""

from __future__ import annotations

import typing
from pathlib import Path

import numpy as np
import pytest

from app.anchors.report import FindingCode


@pytest.fixture
def report(stocked, embeddings):
    """The report of the set `s`, whose embeddings are the encoders' changed ones."""

    def ask(**changed):
        lists = {name: rows.tolist() for name, rows in {**embeddings, **changed}.items()}
        stocked.post("/anchor-sets", json={"name": "s", "embeddings": lists}).raise_for_status()
        answer = stocked.get("/anchor-sets/s/report")
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


def test_parallel_anchors_have_nothing_wrong_with_them(report):
    found = report()
    assert (found["anchor_set"], found["size"]) == ("s", 40)
    assert found["findings"] == []


def test_an_encoder_of_other_rows_is_unrelated_to_the_others(report, embeddings):
    found = report(second=np.random.default_rng(0).permutation(embeddings["second"]))
    said = found["findings"][0]
    assert (said["code"], said["severity"]) == ("unrelated-spaces", "error")
    assert "create a new set" in said["detail"]
    assert said["encoders"] == ["first", "second"]


def test_a_line_that_is_missing_in_the_middle_is_found(report):
    rows = np.random.default_rng(3).normal(size=(320, 8))
    found = report(first=rows, second=np.r_[rows[:200], np.roll(rows[200:], 1, 0)][:, :6])
    errors = [each for each in found["findings"] if each["severity"] == "error"]
    assert [each["rows"][0] for each in errors] == [200, 240, 280]


def test_rows_that_add_nothing_are_named(report, embeddings):
    first = embeddings["first"].copy()
    first[[10, 11]] = first[3]
    [found] = [each for each in report(first=first)["findings"] if each["code"] == "duplicates"]
    assert found == {
        "code": "duplicates",
        "severity": "warning",
        "detail": "these anchors equal an earlier one and add nothing. Replace them",
        "encoders": ["first"],
        "rows": [10, 11],
        "count": 2,
    }


def test_every_code_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "anchor-sets.md").read_text()
    codes = typing.get_args(FindingCode)
    assert [code for code in codes if f"`{code}`" not in text] == []
