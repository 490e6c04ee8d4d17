"""The context of a request: whose request it is."""

from __future__ import annotations

from app.db import tables
from app.request_context import RequestContext


def test_a_job_works_in_its_project_and_under_its_own_name() -> None:
    context = RequestContext.of_job(tables.JobRow(id="j1", project="p", kind="bootstrap"))
    assert (context.project, context.key_id, context.origin) == ("p", None, "job j1")
