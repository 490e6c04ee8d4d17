"""Evaluations as jobs: what they keep, and what may happen to a set until they run."""

from __future__ import annotations

import os
import time

import pytest
import torch

from app.services import evaluation, jobs, spaces, translation
from app.services.evaluation import Settings
from app.services.leases import Leases
from app.storage import tables
from app.storage.blobs import ORPHAN_AGE_S
from app.types import EncoderKind, JobKind

PROJECT = "p"


def some(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed + d))


@pytest.fixture
def queued(stocked):
    """A job that waits: eight items, with a corpus."""
    request = translation.Request("a", "b", "s", "procrustes", {})
    given = {"vectors": some(8, 3, 1), "native": some(8, 2, 2), "corpus": some(9, 2, 3)}
    asked = evaluation.ask(stocked, PROJECT, request, **given, settings=Settings(csls=True))
    return evaluation.request_evaluation(stocked, PROJECT, asked), asked


def run(services, job):
    jobs.run_next(services, {JobKind.evaluate: evaluation.run_evaluation}, Leases(services))
    with services.db.transaction() as session:
        return session.get_one(tables.Job, job.id)


def test_a_job_answers_what_a_request_does_and_keeps_its_items_until_then(stocked, queued):
    job, asked = queued
    [blob] = job.arguments["blobs"].values()
    for path in stocked.blobs.root.glob("??/*"):
        moment = time.time() - 2 * ORPHAN_AGE_S
        os.utime(path, (moment, moment))
    assert spaces.sweep_blobs(stocked) == 0
    row = run(stocked, job)
    assert (row.state, row.result) == ("succeeded", evaluation.evaluate(stocked, PROJECT, asked))
    assert (row.result["n"], row.result["index"], row.result["k"], row.result["csls_neighbours"]) == (8, 9, 9, 8)
    assert spaces.sweep_blobs(stocked) == 1
    assert not (stocked.blobs.root / blob[:2] / blob).exists()


def test_a_set_that_was_deleted_meanwhile_fails_the_job_with_a_reason(stocked, queued):
    job, _ = queued
    spaces.delete_anchor_set(stocked, PROJECT, "s")
    row = run(stocked, job)
    assert (row.state, row.error["code"], row.error["field"]) == ("failed", "anchor-set-not-found", "anchor_set")


def test_an_encoder_that_was_made_anew_with_another_dimension_fails_the_job_with_a_reason(stocked, queued):
    job, _ = queued
    spaces.delete_anchor_set(stocked, PROJECT, "s")
    spaces.delete_encoder(stocked, PROJECT, "b")
    spaces.create_encoder(stocked, PROJECT, name="b", kind=EncoderKind.external, dim=4)
    spaces.create_anchor_set(stocked, PROJECT, name="s", embeddings={"a": some(12, 3), "b": some(12, 4)})
    row = run(stocked, job)
    assert (row.state, row.error["code"], row.error["field"]) == ("failed", "dimension-mismatch", "native")


def test_the_cost_that_decides_is_that_of_the_cosines_that_are_computed(stocked, queued):
    _, asked = queued
    told = []
    evaluation.evaluate(stocked, PROJECT, asked, lambda done, total: told.append((done, total)))
    assert {total for _, total in told} == {asked.cosines}
    assert asked.cosines == 2 * 8 * 8 + 3 * (8 * 8 + 3 * 8 * 9)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] in (asked.cosines - 8 * 8, asked.cosines - 8 * 9)
    anchors = evaluation.ask(
        stocked,
        PROJECT,
        translation.Request("a", "b", "s", "auto", {}),
        vectors=None,
        native=None,
        corpus=None,
        settings=Settings(),
    )
    assert anchors.cosines == 2 * 12 * 12
