"""Metrics that only the database knows: jobs and encoders of the whole service."""

from __future__ import annotations

from dataclasses import dataclass

from app.context import Services
from app.db import resources, tables
from app.jobs import queries as job_queries


@dataclass(frozen=True)
class DatabaseMetrics:
    """Names that a client has chosen are not among these.

    jobs             unfinished jobs of all projects, by state
    oldest_queued_s  how long the oldest queued job has waited; 0 without one
    encoders         encoders of all projects, by the result of their last check
    """

    jobs: dict[str, int]
    oldest_queued_s: float
    encoders: dict[str, int]


def read_metrics(services: Services) -> DatabaseMetrics:
    """Return the metrics as the database has them now. Raises DatabaseUnavailable."""
    with services.db.transaction() as session:
        jobs = dict(job_queries.count_by_state(session))
        oldest = job_queries.oldest_queued(session)
        encoders = resources.count_checks(session)
    waited_s = 0.0 if oldest is None else max(0.0, (tables.now() - oldest).total_seconds())
    return DatabaseMetrics(jobs, waited_s, encoders)
