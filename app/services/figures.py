"""What the database knows about the whole service, for Prometheus, read when it asks. No name that a client gave is among it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from app.services.context import Services
from app.storage import registry, tables

#: the newest translators whose quality is shown
TRANSLATORS = 200


def collect(services: Services, project: str) -> CollectorRegistry:
    """All jobs by state, how long the oldest waits, and the promised quality of the project's own translators.

    Raises DatabaseUnavailable.
    """
    found = CollectorRegistry()
    jobs = Gauge("anchorage_jobs", "Jobs, by state.", ["state"], registry=found)
    age = Gauge("anchorage_queue_oldest_seconds", "How long the oldest queued job has waited.", registry=found)
    quality = Gauge(
        "anchorage_translator_quality",
        "Held-out quality of a translator, and of doing nothing, over its anchors.",
        ["translator", "method", "vectors", "measure"],
        registry=found,
    )
    with services.db.transaction() as session:
        for state, count in registry.count_jobs(session).items():
            jobs.labels(state).set(count)
        oldest = registry.oldest_queued(session)
        reports = registry.newest_reports(session, project, limit=TRANSLATORS)
    age.set(0.0 if oldest is None else max(0.0, (tables.now() - oldest).total_seconds()))
    for row in reports:
        held_out = (row.report or {}).get("held_out") or {}
        for vectors in ("translated", "do_nothing"):
            for measure in ("cosine", "recall", "mrr"):
                if vectors in held_out:
                    quality.labels(row.content, row.method, vectors, measure).set(held_out[vectors][measure])
    return found
