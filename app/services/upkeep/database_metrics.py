"""Metrics that only the database knows: jobs and encoders of the whole service, quality of a
project's translators.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.services.context import Services
from app.storage import tables
from app.storage.queries import jobs as job_queries
from app.storage.queries import resources

#: most translators of one reading: the newest
MAX_TRANSLATORS = 200


@dataclass(frozen=True)
class DatabaseMetrics:
    """Names that a client has chosen are not among these.

    jobs             unfinished jobs of all projects, by state
    oldest_queued_s  how long the oldest queued job has waited; 0 without one
    encoders         encoders of all projects, by the result of their last check
    qualities        held-out measures of the project's newest translators that have a report, by
                     translator, method, vectors ("translated" or "do_nothing") and measure
    """

    jobs: dict[str, int]
    oldest_queued_s: float
    encoders: dict[str, int]
    qualities: dict[tuple[str, str, str, str], float]


def read_metrics(services: Services, project: str) -> DatabaseMetrics:
    """Return the metrics as the database has them now. Raises DatabaseUnavailable."""
    with services.db.transaction() as session:
        jobs = dict(job_queries.count_by_state(session))
        oldest = job_queries.oldest_queued(session)
        encoders = resources.count_checks(session)
        rows = resources.newest_reports(session, project, limit=MAX_TRANSLATORS)
    waited_s = 0.0 if oldest is None else max(0.0, (tables.now() - oldest).total_seconds())
    qualities = {
        (row.content, row.method, vectors, measure): measures[measure]
        for row in rows
        for vectors, measures in ((row.report or {}).get("held_out") or {}).items()
        if vectors in ("translated", "do_nothing")
        for measure in ("cosine", "recall", "mrr")
    }
    return DatabaseMetrics(jobs, waited_s, encoders, qualities)
