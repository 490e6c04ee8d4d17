"""Evaluations as jobs: what they keep, and what may happen to a set until they run."""

from __future__ import annotations

import pytest

from app.anchors import service as anchor_sets
from app.encoders import service as encoders
from app.ops import retention
from app.search.evaluate import evaluate_later
from app.translate import evaluate as evaluation
from app.translate.maps import FitRequest
from tests.helpers import CONTEXT, PROJECT, age, create_encoder, run, some


@pytest.fixture
def queued(stocked_services):
    """A job that waits: eight items, with a corpus."""
    request = FitRequest("a", "b", "s", "procrustes", {})
    given = {"vectors": some(8, 3, 1), "native": some(8, 2, 2), "corpus": some(9, 2, 3)}
    asked = evaluation.check_evaluation(stocked_services, PROJECT, request, given, None)
    return evaluate_later(stocked_services, CONTEXT, asked), asked


def test_a_job_answers_what_a_request_does_and_keeps_its_items_until_then(stocked_services, queued):
    job, asked = queued
    [blob] = job.arguments["blobs"].values()
    age(stocked_services)
    assert retention.sweep_blobs(stocked_services) == 0
    row = run(stocked_services, job)
    assert (row.state, row.result) == ("succeeded", asked.measure(stocked_services, CONTEXT))
    assert (row.result["n"], row.result["index"], row.result["k"]) == (8, 9, 9)
    assert retention.sweep_blobs(stocked_services) == 1
    assert not (stocked_services.blobs.root / blob[:2] / blob).exists()


def test_a_set_that_was_deleted_or_made_anew_meanwhile_fails_the_job_with_a_reason(
    stocked_services, queued
):
    job, asked = queued
    anchor_sets.delete_anchor_set(stocked_services, CONTEXT, "s")
    row = run(stocked_services, job)
    assert row.state == "failed"
    assert (row.error["code"], row.error["field"]) == ("anchor-set-not-found", "anchor_set")
    later = evaluate_later(stocked_services, CONTEXT, asked)
    encoders.delete_encoder(stocked_services, CONTEXT, "b")
    create_encoder(stocked_services, "b", 4)
    anchor_sets.create_anchor_set(
        stocked_services, CONTEXT, name="s", embeddings={"a": some(12, 3), "b": some(12, 4)}
    )
    row = run(stocked_services, later)
    assert (row.state, row.error["code"]) == ("failed", "dimension-mismatch")
    # both have its dimension, and a file of tensors has no order
    assert row.error["field"] in ("native", "corpus")
