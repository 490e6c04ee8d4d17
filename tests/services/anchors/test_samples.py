"""Samples of stores outlive sweeps and backups."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from app.errors import Overloaded
from app.services.anchors import samples
from app.services.context import Services
from app.services.translators import translators
from app.services.upkeep import retention
from tests.services.helpers import CONTEXT, PROJECT, age, alter, another_process, some

REQUEST = translators.FitRequest("a", "b", "s", "ridge", {})


def put(services: Services, seed: int) -> torch.Tensor:
    vectors = some(8, 3, seed=seed)
    samples.put_sample(
        services, CONTEXT, anchor_set="s", encoder="a", vectors=vectors, store_size=None
    )
    return vectors


def found(services: Services) -> torch.Tensor | None:
    source, _ = translators.find_pair(services, PROJECT, REQUEST)
    return samples.sample_of(services, source)


def test_a_sweep_deletes_replaced_samples_only_and_no_weights_of_translators(stocked):
    put(stocked, 1)
    vectors = put(stocked, 2)
    pair = translators.find_pair(stocked, PROJECT, REQUEST)
    content = translators.fit(stocked, CONTEXT, *pair, REQUEST).id
    weights = stocked.blobs.put({"weights": torch.rand(12)})
    alter(stocked, translators.find_translator(stocked, PROJECT, content), weights=weights)
    age(stocked)
    assert retention.sweep_blobs(stocked) == 1
    other = another_process(stocked)
    assert torch.equal(found(other), vectors)
    assert list(stocked.blobs.get(weights)) == ["weights"]
    other.close()


def test_a_comparison_that_fails_leaves_the_earlier_sample(stocked):
    vectors = put(stocked, 1)
    with stocked.fitting(PROJECT), pytest.raises(Overloaded):
        put(replace(stocked, turn_wait_s=0.0), 2)
    assert torch.equal(found(stocked), vectors)


def test_a_process_that_knew_the_set_reads_the_new_sample_when_its_answer_is_due(stocked):
    stocked.names.forget()
    assert found(stocked) is None
    vectors = put(stocked, 1)
    assert torch.equal(found(stocked), vectors)
    samples.delete_sample(stocked, CONTEXT, anchor_set="s", encoder="a")
    assert found(stocked) is None
