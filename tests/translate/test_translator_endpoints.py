"""/translators: reports, estimates, thresholds and ids."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sqlalchemy import update

from app.db.tables import TranslatorRow
from tests.translate.translations import PAIR


@pytest.fixture
def make(stocked):
    """POST /translators of PAIR."""

    def post(**more):
        answer = stocked.post("/translators", json={**PAIR, **more})
        assert answer.status_code == 201, answer.text
        return answer.json()

    return post


def test_a_download_names_its_translator(ask, stocked, refused):
    id_ = ask(method="irp").json()["translator"]
    answer = stocked.get(f"/translators/{id_}/file")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert f'filename="{id_}.safetensors"' in answer.headers["content-disposition"]
    size = int.from_bytes(answer.content[:8], "little")
    about = json.loads(json.loads(answer.content[8 : 8 + size])["__metadata__"]["anchorage"])
    assert {"id": id_, "method": "irp", **PAIR}.items() <= about.items()


def test_thresholds_rise_with_the_old_one_and_end_with_the_anchors_scores(make, stocked):
    path = f"/translators/{make(method='graded')['id']}/threshold"
    answers = [stocked.get(path, params={"source": score}).json() for score in (0.2, 0.4, 0.6, 1)]
    assert [each["source"] for each in answers] == [0.2, 0.4, 0.6, 1.0]
    *known, beyond = [each["by_rate"] for each in answers]
    assert known == sorted(known)
    assert beyond is None
    assert answers[0]["scores"] == "translated-native"
    assert answers[0]["pairs_above"] > 10


def test_a_few_anchors_have_no_estimate_and_no_threshold(make, stocked, refused, embeddings):
    few = {name: vectors[:9].tolist() for name, vectors in embeddings.items()}
    stocked.post("/anchor-sets", json={"name": "few", "embeddings": few})
    made = make(anchor_set="few")
    assert (made["report"]["anchors"], made["report"]["estimate"]) == (9, None)
    answer = stocked.get(f"/translators/{made['id']}/threshold?source=0.5")
    refused(answer, 409, "too-few-anchors", "id", detail="'few'")


@pytest.mark.parametrize("what", ["", "/file", "/threshold?source=0.5"])
def test_an_unknown_or_malformed_id_is_refused(client, refused, what):
    refused(client.get(f"/translators/tr_{'0' * 32}{what}"), 404, "translator-not-found", "id")
    for id_ in ("x", "tr_" + "0" * 31, "tr_" + "g" * 32):
        refused(client.get(f"/translators/{id_}{what}"), 422, "invalid-request", "id")


# --- estimates ------------------------------------------------------------------------------------


def test_a_report_of_another_version_is_measured_anew(make, stocked):
    """Processes of the previous version write old reports until they are replaced."""
    made = make()
    with stocked.app.state.services.db.transaction() as session:
        session.execute(update(TranslatorRow).values(report={"anchors": 40, "estimate": None}))
    assert stocked.get(f"/translators/{made['id']}").json() == made


def test_a_minimum_is_compared_in_the_index_that_the_request_names(ask, make, refused):
    small, large = (make(index=size)["report"]["estimate"] for size in (100, 100_000))
    middle = (small["measures"]["recall"]["value"] + large["measures"]["recall"]["value"]) / 2
    assert ask(min_quality={"recall": middle}, index=100).status_code == 200
    answer = ask(min_quality={"recall": middle}, index=100_000)
    refused(answer, 422, "quality-below-minimum", "min_quality", detail="100,000 items")
    assert answer.json()["found"] == large
    made = ask("/translators", vectors=..., min_quality={"recall": 1.0})
    refused(made, 422, "quality-below-minimum", "min_quality", detail="recall")


def test_a_sample_of_the_store_is_searched_and_its_size_is_the_default_index(make, stocked):
    id_ = make()["id"]
    store = 3 * np.random.default_rng(1).normal(size=(320, 6)) - 2
    body = {"vectors": store.tolist(), "store_size": 320}
    stocked.put("/anchor-sets/items/samples/second", json=body).raise_for_status()
    report = stocked.get(f"/translators/{id_}").json()["report"]
    assert (report["estimate"]["index"], report["estimate"]["measured"]) == (320, True)
