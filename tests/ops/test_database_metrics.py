"""The metrics that either database knows, and that no client's name is among it."""

from __future__ import annotations

from datetime import timedelta

from app.db import tables
from app.ops.database_metrics import (
    DatabaseMetrics,
    read_metrics,
)
from tests.helpers import ON_EACH_DATABASE


def test_an_empty_service_shows_zeros(services):
    assert read_metrics(services) == DatabaseMetrics({"queued": 0, "running": 0}, 0.0, {})


@ON_EACH_DATABASE
def test_unfinished_jobs_of_all_projects_are_counted_and_the_oldest_that_waits_gives_the_age(
    services,
):
    with services.db.transaction() as session:
        for state, project, minutes in (
            ("queued", "p", 1),
            ("queued", "q", 2),
            ("running", "p", 99),
            ("failed", "p", 99),
        ):
            made = tables.now() - timedelta(minutes=minutes)
            ended = made if state == "failed" else None
            session.add(
                tables.JobRow(
                    project=project,
                    kind="bootstrap",
                    state=state,
                    arguments={},
                    created_at=made,
                    finished_at=ended,
                )
            )
    found = read_metrics(services)
    assert found.jobs == {"queued": 2, "running": 1}
    assert 120 <= found.oldest_queued_s < 180
