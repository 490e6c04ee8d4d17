"""/translators/{id}/threshold and /translators/{id}/calibration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from app.demo.pack import Pack, load_pack

ANCHORS = 150
METHOD = "graded"


@pytest.fixture(scope="module")
def pack() -> Pack:
    return load_pack()


@pytest.fixture(scope="module")
def names(pack: Pack) -> tuple[str, str]:
    """Names of the source and the target encoder."""
    first, second, *_ = pack.vectors
    return first, second


@pytest.fixture
def real(
    client: TestClient, pack: Pack, names: tuple[str, str], packed: Callable[..., dict[str, Any]]
) -> str:
    """The id of a translator between two real encoders, from real anchors."""
    for name in names:
        assert (
            client.post(
                "/encoders", json={"name": name, "dim": pack.vectors[name].shape[1]}
            ).status_code
            == 201
        )
    vectors = {name: packed(pack.vectors[name][:ANCHORS].numpy()) for name in names}
    assert (
        client.post("/anchor-sets", json={"name": "intents", "embeddings": vectors}).status_code
        == 201
    )
    return make(client, *names, "intents")


def make(client: TestClient, source: str, target: str, anchor_set: str) -> str:
    body = {"source": source, "target": target, "anchor_set": anchor_set, "method": METHOD}
    answer = client.post("/translators", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def ask(client: TestClient, id_: str, what: str = "threshold", **query: Any) -> Any:
    return client.get(f"/translators/{id_}/{what}", params=query)


# --- real encoders --------------------------------------------------------------------------------


def test_the_whole_map_is_the_thresholds_one_by_one_and_never_falls(client, real):
    for given, other in (("source", "target"), ("target", "source")):
        answer = ask(client, real, "calibration", given=given)
        assert answer.status_code == 200
        table = answer.json()
        assert (table["given"], table["scores"], table["level"]) == (
            given,
            "translated-native",
            0.9,
        )
        points = table["points"]
        assert len(points) == 100
        assert [points[0][given], points[-1][given]] == pytest.approx(table["covered"])
        known = [point[other] for point in points if not point["extrapolated"]]
        assert len(known) > 90
        assert np.all(np.diff(known) >= 0)
        assert np.all(np.diff([point["by_rate"] for point in points]) >= 0)
        one = ask(client, real, **{given: points[40][given]}).json()
        assert points[40] == {name: one[name] for name in points[40]}


# --- made-up encoders -----------------------------------------------------------------------------


@pytest.fixture
def small(stocked: TestClient) -> str:
    """The id of a translator of the forty made-up anchors."""
    return make(stocked, "first", "second", "items")


@pytest.mark.parametrize("what", ["threshold", "calibration"])
def test_fewer_than_ten_distinct_anchors_are_a_conflict(stocked, refused, embeddings, what):
    nine = {
        name: np.concatenate([vectors[:9]] * 3).tolist() for name, vectors in embeddings.items()
    }
    stocked.post("/anchor-sets", json={"name": "few", "embeddings": nine})
    id_ = make(stocked, "first", "second", "few")
    query = {"source": 0.5} if what == "threshold" else {}
    refused(ask(stocked, id_, what, **query), 409, "too-few-anchors", "id", detail="'few'")


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ({}, "not-exactly-one", "source"),
        ({"source": 0.5, "target": 0.5}, "not-exactly-one", "target"),
        ({"source": 1.01}, "invalid-request", "source"),
        ({"source": "NaN"}, "invalid-request", "source"),
        ({"source": 0.5, "scores": "both"}, "invalid-request", "scores"),
        ({"source": 0.5, "level": 0.49}, "invalid-request", "level"),
        ({"what": "calibration", "given": "both"}, "invalid-request", "given"),
        ({"what": "calibration", "level": 0}, "invalid-request", "level"),
    ],
    ids=str,
)
def test_wrong_questions_about_a_threshold_or_a_map_are_refused(
    stocked, refused, small, query, code, field
):
    refused(ask(stocked, small, **query), 422, code, field)
