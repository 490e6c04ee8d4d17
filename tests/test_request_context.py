"""The context of a request: whose inputs it sends."""

from __future__ import annotations

from app.db import tables
from app.request_context import RequestContext


def test_keys_and_jobs_own_their_inputs_and_callers_without_a_key_share_one_owner() -> None:
    keys = [RequestContext("p", key_id, "request 1").owner for key_id in ("k1", "k2")]
    jobs = [
        RequestContext.of_job(tables.JobRow(id=id_, project="p", kind="bootstrap")).owner
        for id_ in ("j1", "j2")
    ]
    without = [RequestContext("p", None, f"request {number}").owner for number in range(2)]
    assert len({*keys, *jobs, *without}) == 5
    assert without[0] == without[1]
    assert RequestContext("q", "k1", "request 2").owner == keys[0]


def test_a_job_works_in_its_project_and_under_its_own_name() -> None:
    context = RequestContext.of_job(tables.JobRow(id="j1", project="p", kind="bootstrap"))
    assert (context.project, context.key_id, context.origin) == ("p", None, "job j1")
