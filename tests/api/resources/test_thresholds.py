"""/translators/{id}/threshold and /translators/{id}/calibration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from torch import Tensor

from app.demo.pack import Pack, load_pack
from app.maths.quality.metrics import unit

SCORES = ("translated-native", "native-native", "translated-translated")
ANCHORS = 300
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
    """The id of a translator between two real encoders, from 300 real anchors."""
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


def held_out_scores(
    client: TestClient, pack: Pack, names: tuple[str, str], packed: Any, unpacked: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Old and new scores of pairs of 500 other items, as a vector database computes them."""
    old_vectors, native = (pack.vectors[name][ANCHORS : ANCHORS + 500] for name in names)
    body = {
        "source": names[0],
        "target": names[1],
        "anchor_set": "intents",
        "method": METHOD,
        "encoding": "base64",
    }
    answer = client.post("/translate", json={**body, "vectors": packed(old_vectors.numpy())})
    translated = torch.from_numpy(unpacked(answer.json()["vectors"]).copy())
    old, native, translated = unit(old_vectors), unit(native), unit(translated)
    i, j = torch.triu_indices(500, 500, offset=1)
    sides = {
        "translated-native": (translated, native),
        "native-native": (native, native),
        "translated-translated": (translated,) * 2,
    }
    return (old @ old.T)[i, j], {
        name: (queries @ index.T)[i, j] for name, (queries, index) in sides.items()
    }


# --- real encoders --------------------------------------------------------------------------------


def test_real_thresholds_are_what_other_items_show(client, real, pack, names, packed, unpacked):
    old, new = held_out_scores(client, pack, names, packed, unpacked)
    for scores in SCORES:
        for source in (0.5, 0.7):
            found = ask(client, real, source=source, scores=scores).json()
            near = (old - source).abs() < 0.02
            assert int(near.sum()) > 300
            assert found["target"] == pytest.approx(float(new[scores][near].mean()), abs=0.03)
            within = (new[scores][near] >= found["interval"][0]) & (
                new[scores][near] <= found["interval"][1]
            )
            assert float(within.double().mean()) == pytest.approx(0.9, abs=0.06)
            share = float((old >= source).double().mean())
            assert found["share"] == pytest.approx(share, rel=0.35)
            assert found["by_rate"] == pytest.approx(
                float(new[scores].quantile(1 - share)), abs=0.03
            )


def test_the_answer_says_everything_about_one_threshold(client, real):
    answer = ask(client, real, source=0.6)
    assert answer.status_code == 200
    found = answer.json()
    assert (found["source"], found["scores"], found["level"], found["extrapolated"]) == (
        0.6,
        "translated-native",
        0.9,
        False,
    )
    assert (
        found["interval"][0]
        < found["map_interval"][0]
        < found["target"]
        < found["map_interval"][1]
        < found["interval"][1]
    )
    assert found["covered"][0] < 0.6 < found["covered"][1]
    assert found["pairs_above"] >= 10
    assert 0 < found["share"] < 0.05
    assert (
        found["same_item"]["interval"][0]
        < found["same_item"]["mean"]
        < found["same_item"]["interval"][1]
        < 1
    )
    assert found["same_item"]["mean"] > found["target"]
    agreement = found["agreement"]
    assert set(agreement) == {"unchanged", "mapped", "by_rate", "best"}
    assert agreement["unchanged"]["threshold"] == 0.6
    assert agreement["mapped"]["threshold"] == found["target"]
    assert agreement["by_rate"]["threshold"] == found["by_rate"]
    for decisions in agreement.values():
        assert 0.4 < decisions["f1"] < 1
        low, high = sorted((decisions["precision"], decisions["recall"]))
        assert low <= decisions["f1"] <= high


def test_a_wider_level_widens_both_intervals_and_moves_nothing_else(client, real):
    narrow, wide = (ask(client, real, source=0.6, level=level).json() for level in (0.5, 0.99))
    for interval in ("interval", "map_interval"):
        assert wide[interval][0] < narrow[interval][0] < narrow[interval][1] < wide[interval][1]
    moved = ("level", "interval", "map_interval", "same_item")
    assert {**wide, **dict.fromkeys(moved)} == {**narrow, **dict.fromkeys(moved)}


@pytest.mark.parametrize("scores", SCORES)
def test_the_way_back_is_asked_for_by_target_and_the_rate_leads_back(client, real, scores):
    there = ask(client, real, source=0.6, scores=scores).json()
    back = ask(client, real, target=there["by_rate"], scores=scores).json()
    assert back["target"] == there["by_rate"]
    assert back["by_rate"] == pytest.approx(0.6, abs=0.02)
    assert back["interval"][0] < back["source"] < back["interval"][1]


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


def test_beyond_the_anchors_scores_the_answer_says_so_and_invents_nothing(client, real):
    for source in (-1, -0.9, 0.999, 1):
        found = ask(client, real, source=source).json()
        assert found["extrapolated"]
        for name in ("target", "interval", "map_interval", "by_rate", "agreement"):
            assert found[name] is None
        assert found["covered"][1] < 0.999
        assert (found["pairs_above"] < 10) == (source > 0)


# --- made-up encoders -----------------------------------------------------------------------------


@pytest.fixture
def small(stocked: TestClient) -> str:
    """The id of a translator of the forty made-up anchors."""
    return make(stocked, "first", "second", "items")


def test_a_turned_encoder_keeps_its_thresholds(stocked, embeddings):
    turned, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))
    stocked.post("/encoders", json={"name": "turned", "dim": 8})
    both = {
        "first": embeddings["first"].tolist(),
        "turned": (embeddings["first"] @ turned).tolist(),
    }
    assert (
        stocked.post("/anchor-sets", json={"name": "both", "embeddings": both}).status_code == 201
    )
    id_ = make(stocked, "first", "turned", "both")
    for source in (0.0, 0.2, 0.4):
        found = ask(stocked, id_, source=source, scores="native-native").json()
        assert (found["target"], found["by_rate"]) == pytest.approx((source, source), abs=1e-5)
        assert found["agreement"]["unchanged"]["f1"] == 1
        assert (
            found["agreement"]["best"]["f1"] > 0.98
        )  # a threshold between two scores, where other pairs can lie


@pytest.mark.parametrize("what", ["threshold", "calibration"])
def test_fewer_than_ten_distinct_anchors_are_a_conflict(stocked, refused, embeddings, what):
    nine = {
        name: np.concatenate([vectors[:9]] * 3).tolist() for name, vectors in embeddings.items()
    }
    stocked.post("/anchor-sets", json={"name": "few", "embeddings": nine})
    id_ = make(stocked, "first", "second", "few")
    query = {"source": 0.5} if what == "threshold" else {}
    refused(ask(stocked, id_, what, **query), 409, "too-few-anchors", "id", detail="'few'")


def test_anchors_that_are_equally_far_apart_have_an_empty_map(stocked):
    body = {
        "name": "flat",
        "embeddings": {"wide": np.eye(12).tolist(), "other": np.eye(12)[::-1].tolist()},
    }
    for name in ("wide", "other"):
        stocked.post("/encoders", json={"name": name, "dim": 12})
    assert stocked.post("/anchor-sets", json=body).status_code == 201
    id_ = make(stocked, "wide", "other", "flat")
    table = ask(stocked, id_, "calibration", scores="native-native").json()
    assert (table["points"], table["covered"], table["same_item"]) == ([], None, None)
    assert ask(stocked, id_, source=0, scores="native-native").json()["extrapolated"]


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ({}, "not-exactly-one", "source"),
        ({"source": 0.5, "target": 0.5}, "not-exactly-one", "target"),
        ({"source": 1.01}, "invalid-request", "source"),
        ({"source": -1.01}, "invalid-request", "source"),
        ({"source": "NaN"}, "invalid-request", "source"),
        ({"source": "1e999"}, "invalid-request", "source"),
        ({"source": "near"}, "invalid-request", "source"),
        ({"target": 85}, "invalid-request", "target"),
        ({"source": 0.5, "scores": "both"}, "invalid-request", "scores"),
        ({"source": 0.5, "level": 0.49}, "invalid-request", "level"),
        ({"source": 0.5, "level": 0.999}, "invalid-request", "level"),
        ({"source": 0.5, "level": "nan"}, "invalid-request", "level"),
        ({"what": "calibration", "given": "both"}, "invalid-request", "given"),
        ({"what": "calibration", "scores": "x"}, "invalid-request", "scores"),
        ({"what": "calibration", "level": 0}, "invalid-request", "level"),
    ],
    ids=str,
)
def test_wrong_questions_about_a_threshold_or_a_map_are_refused(
    stocked, refused, small, query, code, field
):
    refused(ask(stocked, small, **query), 422, code, field)


def test_a_deleted_set_takes_its_thresholds_along(stocked, refused, small):
    assert ask(stocked, small, source=0.3).status_code == 200
    stocked.delete("/anchor-sets/items")
    refused(ask(stocked, small, source=0.3), 404, "translator-not-found", "id")
