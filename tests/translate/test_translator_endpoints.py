"""/translators: reports, ids and the list."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.translate.translations import PAIR, asker

#: methods whose translators differ
FOUR = ("irp", "graded", "procrustes", "ridge")


@pytest.fixture
def ask(stocked, embeddings):
    return asker(stocked, embeddings["first"])


def test_a_download_names_its_translator(ask, stocked, refused):
    id_ = ask(method="irp").json()["translator"]
    answer = stocked.get(f"/translators/{id_}/file")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert f'filename="{id_}.safetensors"' in answer.headers["content-disposition"]
    size = int.from_bytes(answer.content[:8], "little")
    about = json.loads(json.loads(answer.content[8 : 8 + size])["__metadata__"]["anchorage"])
    assert {"id": id_, "method": "irp", **PAIR}.items() <= about.items()


def test_the_same_recipe_has_the_same_id_and_another_recipe_another(ask):
    ids = [
        ask(method="irp", options=options).json()["translator"]
        for options in ({}, {"seed": 0}, {"seed": 0, "omega": 8})
    ]
    assert len(set(ids)) == 1
    others = {ask(method=method).json()["translator"] for method in FOUR}
    assert len(others) == len(FOUR)
    assert (
        ask(source="second", target="first", vectors=[[1.0] * 6]).json()["translator"] not in others
    )


def test_a_few_anchors_have_no_estimate(stocked):
    size = 5
    vectors = {"first": np.eye(8)[:size].tolist(), "second": np.eye(6)[:size].tolist()}
    stocked.post("/anchor-sets", json={"name": "few", "embeddings": vectors})
    report = stocked.post("/translators", json={**PAIR, "anchor_set": "few"}).json()["report"]
    assert (report["anchors"], report["estimate"]) == (size, None)


@pytest.mark.parametrize("what", ["", "/file", "/threshold?source=0.5"])
def test_an_unknown_or_malformed_id_is_refused(client, refused, what):
    refused(client.get(f"/translators/tr_{'0' * 32}{what}"), 404, "translator-not-found", "id")
    for id_ in ("x", "tr_" + "0" * 31, "tr_" + "g" * 32):
        refused(client.get(f"/translators/{id_}{what}"), 422, "invalid-request", "id")


# --- the list -------------------------------------------------------------------------------------


def listed(client, query=""):
    """The page of GET /translators, and the ids on it."""
    answer = client.get(f"/translators{query}")
    assert answer.status_code == 200, answer.text
    page = answer.json()["translators"]
    return page, [each["id"] for each in page]


def test_the_list_has_each_translator_once_in_the_order_of_ids(ask, stocked):
    assert listed(stocked) == ([], [])
    ids = sorted(ask(method=method).json()["translator"] for method in FOUR)
    page, found = listed(stocked)
    assert found == ids
    for each in page:
        whole = stocked.get(f"/translators/{each['id']}").json()
        assert each == {name: whole[name] for name in whole if name != "report"}
        assert {key: each[key] for key in PAIR} == PAIR
