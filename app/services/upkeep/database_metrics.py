"""What the database knows about the whole service, for Prometheus, read when it asks. No name that a client gave is among it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.services.context import Services
from app.storage import tables
from app.storage.queries import jobs as job_queries
from app.storage.queries import resources

#: the newest translators whose quality is shown
TRANSLATORS = 200


class Found(Collector):
    """Figures found in the database, to be told once."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def collect(services: Services, project: str) -> CollectorRegistry:
    """Unfinished jobs by state, how long the oldest waits, and the promised quality of the project's own translators.

    Raises DatabaseUnavailable.
    """
    jobs = GaugeMetricFamily("anchorage_jobs", "Unfinished jobs, by state.", labels=["state"])
    quality = GaugeMetricFamily(
        "anchorage_translator_quality",
        "Held-out quality of a translator, and of doing nothing, over its anchors.",
        labels=["translator", "method", "vectors", "measure"],
    )
    with services.db.transaction() as session:
        for state, count in job_queries.count_by_state(session).items():
            jobs.add_metric([state], count)
        oldest = job_queries.oldest_queued(session)
        reports = resources.newest_reports(session, project, limit=TRANSLATORS)
    waited = 0.0 if oldest is None else max(0.0, (tables.now() - oldest).total_seconds())
    age = GaugeMetricFamily(
        "anchorage_queue_oldest_seconds", "How long the oldest queued job has waited.", value=waited
    )
    for row in reports:
        held_out = (row.report or {}).get("held_out") or {}
        for vectors in ("translated", "do_nothing"):
            for measure in ("cosine", "recall", "mrr"):
                if vectors in held_out:
                    quality.add_metric(
                        [row.content, row.method, vectors, measure], held_out[vectors][measure]
                    )
    found = CollectorRegistry()
    found.register(Found([jobs, age, quality]))
    return found
