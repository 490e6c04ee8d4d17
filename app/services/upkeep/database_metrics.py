"""Metrics that only the database knows: jobs of the whole service, quality of a project's
translators.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.services.context import Services
from app.storage import tables
from app.storage.queries import jobs as job_queries
from app.storage.queries import resources

#: most translators of one reading: the newest
MOST_TRANSLATORS = 200


@dataclass(frozen=True)
class TranslatorQuality:
    """Held-out measures of a translator; by `vectors` "translated" or "do_nothing", then by
    measure.
    """

    translator: str
    method: str
    measures: dict[str, dict[str, float]]


@dataclass(frozen=True)
class DatabaseMetrics:
    """Names that a client has chosen are not among these.

    jobs             unfinished jobs of all projects, by state
    oldest_queued_s  how long the oldest queued job has waited; 0 without one
    qualities        of the project's newest translators that have a report
    """

    jobs: dict[str, int]
    oldest_queued_s: float
    qualities: list[TranslatorQuality]


def read_metrics(services: Services, project: str) -> DatabaseMetrics:
    """Return the metrics as the database has them now. Raises DatabaseUnavailable."""
    with services.db.transaction() as session:
        jobs = dict(job_queries.count_by_state(session))
        oldest = job_queries.oldest_queued(session)
        rows = resources.newest_reports(session, project, limit=MOST_TRANSLATORS)
    waited_s = 0.0 if oldest is None else max(0.0, (tables.now() - oldest).total_seconds())
    return DatabaseMetrics(jobs, waited_s, [_quality(row) for row in rows])


def _quality(row: tables.TranslatorRow) -> TranslatorQuality:
    held_out = (row.report or {}).get("held_out") or {}
    measures = {
        vectors: {measure: held_out[vectors][measure] for measure in ("cosine", "recall", "mrr")}
        for vectors in ("translated", "do_nothing")
        if vectors in held_out
    }
    return TranslatorQuality(row.content, row.method, measures)
