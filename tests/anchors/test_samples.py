"""Samples of stores: /anchor-sets/{name}/samples/{encoder}, and what keeps them."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from app.anchors import samples
from app.context import Services
from app.errors import TooMuchAtOnce
from app.http import media_types
from app.ops import retention
from app.translate import estimate
from app.translate import fit as translators
from app.translate.maps import FitRequest
from tests.helpers import CONTEXT, PROJECT, age, alter, another_process, some

ROWS = np.random.default_rng(7).normal(size=(9, 8)).astype(np.float32)
PATH = "/anchor-sets/items/samples/first"
REQUEST = FitRequest("a", "b", "s", "ridge", {})


def stored(client) -> list[Tensor | None]:
    services = client.app.state.services
    request = FitRequest("first", "second", "items", "auto", {})
    pair = translators.find_pair(services, "default", request)
    return [samples.sample_of(services, space) for space in pair]


def test_a_sample_is_set_shown_replaced_and_deleted(stocked, refused):
    body = {"vectors": ROWS.tolist(), "store_size": 5_000_000_000}
    answer = stocked.put(PATH, json=body)
    assert answer.status_code == 200, answer.text
    shown = [space["sample"] for space in answer.json()["spaces"]]
    assert shown == [{"rows": 9, "store_size": 5_000_000_000}, None]
    coverage = answer.json()["coverage"]
    assert (coverage["verdict"], coverage["sampled"]) == ("unknown", 9)
    assert stocked.get("/anchor-sets/items").json() | {"coverage": coverage} == answer.json()
    found, other = stored(stocked)
    assert np.array_equal(found.numpy(), ROWS)
    assert other is None
    again = stocked.put(PATH, json={"vectors": ROWS[:2].tolist()}).json()
    assert again["spaces"][0]["sample"] == {"rows": 2, "store_size": None}
    assert len(stored(stocked)[0]) == 2


def test_a_sample_is_read_from_a_body_of_vectors_with_its_store_size_in_the_query(stocked):
    file = io.BytesIO()
    np.save(file, ROWS)
    answer = stocked.put(
        f"{PATH}?store_size=70",
        content=file.getvalue(),
        headers={"Content-Type": media_types.NPY},
    )
    assert answer.json()["spaces"][0]["sample"] == {"rows": 9, "store_size": 70}
    assert np.array_equal(stored(stocked)[0].numpy(), ROWS)


@pytest.mark.parametrize(
    ("encoder", "body", "status", "code", "field"),
    [
        ("first", {"vectors": [[1, 2]]}, 422, "dimension-mismatch", "vectors"),
        (
            "first",
            {"vectors": [[1] * 8] * 3, "store_size": 2},
            422,
            "invalid-request",
            "store_size",
        ),
        ("z", {"vectors": [[1] * 8]}, 404, "encoder-not-found", "encoder"),
    ],
)
def test_a_wrong_sample_is_refused_and_changes_nothing(
    stocked, refused, encoder, body, status, code, field
):
    answer = stocked.put(f"/anchor-sets/items/samples/{encoder}", json=body)
    refused(answer, status, code, field)
    assert stored(stocked) == [None, None]


# --- what keeps them ------------------------------------------------------------------------------


def put(services: Services, seed: int) -> Tensor:
    vectors = some(8, 3, seed=seed)
    samples.put_sample(
        services, CONTEXT, anchor_set="s", encoder="a", vectors=vectors, store_size=None
    )
    return vectors


def found(services: Services) -> Tensor | None:
    source, _ = translators.find_pair(services, PROJECT, REQUEST)
    return samples.sample_of(services, source)


def test_a_sweep_deletes_replaced_samples_only_and_no_weights_of_translators(stocked_services):
    put(stocked_services, 1)
    vectors = put(stocked_services, 2)
    pair = translators.find_pair(stocked_services, PROJECT, REQUEST)
    content = translators.fit(stocked_services, CONTEXT, *pair, REQUEST).id
    weights = stocked_services.blobs.put({"weights": torch.rand(12)})
    made = estimate.find_translator(stocked_services, PROJECT, content)
    alter(stocked_services, made, weights=weights)
    age(stocked_services)
    assert retention.sweep_blobs(stocked_services) == 1
    other = another_process(stocked_services)
    assert torch.equal(found(other), vectors)
    assert list(stocked_services.blobs.get(weights)) == ["weights"]


def test_a_comparison_that_fails_leaves_the_earlier_sample(stocked_services):
    vectors = put(stocked_services, 1)
    with stocked_services.take(stocked_services.turns.fits, PROJECT), pytest.raises(TooMuchAtOnce):
        put(replace(stocked_services, turn_wait_s=0.0), 2)
    assert torch.equal(found(stocked_services), vectors)
