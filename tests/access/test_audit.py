"""Every write leaves an audit row."""

from __future__ import annotations

import torch

from app.access import audit
from app.access import service as api_keys
from app.anchors import service as anchor_sets
from app.context import RequestContext
from app.encoders import service as encoders
from app.heads import service as heads
from app.heads.schemas import NewHead
from app.jobs import submission
from app.jobs import worker as runner
from app.jobs.worker import Leases
from app.translate import fit as translators
from app.translate.maps import FitRequest
from app.types import JobKind, Scope
from tests.helpers import CONTEXT, PROJECT, audited, create_encoder

KEY_ID = "k" * 32


#: the context of one request
REQUEST = RequestContext(PROJECT, KEY_ID, origin="request 1")


def test_every_write_is_noted_with_its_key_and_origin_and_in_order(stocked_services):
    services = stocked_services
    pair = FitRequest("a", "b", "s", "procrustes", {})
    create_encoder(services, "c", 3, REQUEST)
    anchor_sets.add_embeddings(
        services, REQUEST, anchor_set="s", encoder="c", vectors=torch.randn(12, 3)
    )
    create_encoder(services, "d", 3, REQUEST)
    encoders.delete_encoder(services, REQUEST, "d")
    anchor_sets.create_anchor_set(services, REQUEST, name="t", embeddings={"a": torch.randn(5, 3)})
    anchor_sets.delete_anchor_set(services, REQUEST, "t")
    head = NewHead(name="h", encoder="a", classes=list("xyz"), weight=torch.eye(3))
    heads.create_head(services, REQUEST, head)
    heads.delete_head(services, REQUEST, "h")
    fitted = translators.fit(
        services, REQUEST, *translators.find_pair(services, PROJECT, pair), pair
    )
    job = submission.submit_job(services, REQUEST, JobKind.bootstrap, {})
    submission.cancel_job(services, REQUEST, job.id)
    key, _ = api_keys.create_key(services, REQUEST, name="k", scopes=[Scope.read])
    api_keys.revoke_key(services, REQUEST, key.id)
    rows = [row for row in reversed(audited(services)) if row.origin == "request 1"]
    assert {row.key_id for row in rows} == {KEY_ID}
    assert [(row.action, row.resource, row.name) for row in rows] == [
        ("create", "encoder", "c"),
        ("embed", "anchor-set", "s"),
        ("create", "encoder", "d"),
        ("delete", "encoder", "d"),
        ("create", "anchor-set", "t"),
        ("delete", "anchor-set", "t"),
        ("create", "head", "h"),
        ("delete", "head", "h"),
        ("create", "translator", fitted.id),
        ("create", "job", job.id),
        ("cancel", "job", job.id),
        ("create", "api-key", key.id),
        ("revoke", "api-key", key.id),
    ]


def test_what_a_job_makes_is_noted_in_the_jobs_name(services):
    job = submission.submit_job(services, CONTEXT, JobKind.bootstrap, {})

    def run(services, job, progress):
        made = (RequestContext.of_job(job), "create", "anchor-set", "made")
        return runner.JobResult({}, lambda session: audit.record_audit(session, *made))

    runner.run_next(services, {JobKind.bootstrap: run}, Leases(services))
    row = audited(services)[0]
    assert (row.name, row.origin, row.key_id) == ("made", f"job {job.id}", None)
