"""Samples of stores outlive sweeps and backups."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from app.anchors import samples
from app.context import Services
from app.errors import TooMuchAtOnce
from app.ops import retention
from app.translate import estimate
from app.translate import fit as translators
from app.translate.maps import FitRequest
from tests.helpers import CONTEXT, PROJECT, age, alter, another_process, some

REQUEST = FitRequest("a", "b", "s", "ridge", {})


def put(services: Services, seed: int) -> torch.Tensor:
    vectors = some(8, 3, seed=seed)
    samples.put_sample(
        services, CONTEXT, anchor_set="s", encoder="a", vectors=vectors, store_size=None
    )
    return vectors


def found(services: Services) -> torch.Tensor | None:
    source, _ = translators.find_pair(services, PROJECT, REQUEST)
    return samples.sample_of(services, source)


def test_a_sweep_deletes_replaced_samples_only_and_no_weights_of_translators(stocked_services):
    put(stocked_services, 1)
    vectors = put(stocked_services, 2)
    pair = translators.find_pair(stocked_services, PROJECT, REQUEST)
    content = translators.fit(stocked_services, CONTEXT, *pair, REQUEST).id
    weights = stocked_services.blobs.put({"weights": torch.rand(12)})
    alter(
        stocked_services,
        estimate.find_translator(stocked_services, PROJECT, content),
        weights=weights,
    )
    age(stocked_services)
    assert retention.sweep_blobs(stocked_services) == 1
    other = another_process(stocked_services)
    assert torch.equal(found(other), vectors)
    assert list(stocked_services.blobs.get(weights)) == ["weights"]
    other.close()


def test_a_comparison_that_fails_leaves_the_earlier_sample(stocked_services):
    vectors = put(stocked_services, 1)
    with stocked_services.take(stocked_services.turns.fits, PROJECT), pytest.raises(TooMuchAtOnce):
        put(replace(stocked_services, turn_wait_s=0.0), 2)
    assert torch.equal(found(stocked_services), vectors)
