"""Samples of stores decide which anchors a fit uses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from app.anchors import samples
from app.anchors import service as anchor_sets
from app.db import tables
from app.translate import estimate, fit_anchors
from app.translate import fit as translators
from app.translate import service as apply
from app.translate.maps import FitRequest
from app.translate.warnings import warnings_about_pair
from tests.helpers import CONTEXT, PROJECT, again, create_encoder, some

OWN, FOREIGN = 60, 90
DIMS = {"x": 12, "y": 10}
REQUEST = FitRequest("x", "y", "mixed", "ridge", {"ridge": 1.0})


def corpus(rows: int, which: int, seed: int) -> dict[str, torch.Tensor]:
    """The same items by both encoders; each corpus has its own subspace, mean and map."""
    inner = some(rows, 4, seed)
    return {
        name: inner @ some(4, dim, 50 + which) + 3.0 * some(1, dim, 60 + which)
        for name, dim in DIMS.items()
    }


OWN_ITEMS, FOREIGN_ITEMS = corpus(OWN, 0, 1), corpus(FOREIGN, 1, 2)
SAMPLE = corpus(200, 0, 3)["x"]


@pytest.fixture
def mixed(services):
    """The set `mixed` of two corpora, and `own` of the store's alone."""
    for name, dim in DIMS.items():
        create_encoder(services, name, dim)
    both = {name: torch.cat([OWN_ITEMS[name], FOREIGN_ITEMS[name]]) for name in DIMS}
    for name, embeddings in (("mixed", both), ("own", OWN_ITEMS)):
        anchor_sets.create_anchor_set(services, CONTEXT, name=name, embeddings=embeddings)
    return services


def put_sample(services, vectors=SAMPLE, name="mixed", encoder="x"):
    samples.put_sample(
        services, CONTEXT, anchor_set=name, encoder=encoder, vectors=vectors, store_size=None
    )


def translate(services, request=REQUEST):
    vectors = corpus(20, 0, 4)["x"]
    return apply.apply_map(services, CONTEXT, apply.Translation(request), vectors=vectors)


def row_of(services, answer) -> tables.TranslatorRow:
    return estimate.find_with_report(services, PROJECT, answer.served.id)


def test_with_a_sample_foreign_anchors_change_a_translation_little(mixed):
    alone = translate(mixed, replace(REQUEST, anchor_set="own")).output.vectors
    before = translate(mixed).output.vectors
    put_sample(mixed)
    after = translate(mixed)
    assert (after.output.vectors - alone).norm() < 0.2 * (before - alone).norm()
    row = row_of(mixed, after)
    assert row.weights is not None
    assert again(mixed, row).weights == row.weights
    found = row.report["weights"]
    assert found["store"]["verdict"] == "foreign-anchors"
    assert found["store"]["foreign"] == pytest.approx(FOREIGN, abs=5)
    assert found["counted"] == OWN + FOREIGN - found["store"]["foreign"]
    assert row.report["estimate"]["anchors"] == found["counted"]


def test_a_sample_of_the_target_serves_both_directions(mixed):
    put_sample(mixed, corpus(200, 0, 5)["y"], encoder="y")
    for request in (REQUEST, replace(REQUEST, source="y", target="x")):
        pair = translators.find_pair(mixed, PROJECT, request)
        found = fit_anchors.find_anchors(mixed, *pair)
        assert float(found.counted[OWN:].double().mean()) < 0.1
        codes = [each.code for each in warnings_about_pair(mixed, *pair)]
        assert codes.count("foreign-anchors") == 1
