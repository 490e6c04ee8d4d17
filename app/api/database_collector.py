"""The metrics that the database knows, in Prometheus's classes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.services.upkeep.database_metrics import DatabaseMetrics


def make_registry(found: DatabaseMetrics) -> CollectorRegistry:
    """Return a registry that holds these metrics alone."""
    registry = CollectorRegistry()
    registry.register(DatabaseCollector(found))
    return registry


class DatabaseCollector(Collector):
    """Gauges of metrics that have been read already."""

    def __init__(self, found: DatabaseMetrics) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        found = self._found
        jobs = GaugeMetricFamily("anchorage_jobs", "Unfinished jobs, by state.", labels=["state"])
        for state, count in found.jobs.items():
            jobs.add_metric([state], count)
        yield jobs
        yield GaugeMetricFamily(
            "anchorage_queue_oldest_seconds",
            "How long the oldest queued job has waited.",
            value=found.oldest_queued_s,
        )
        quality = GaugeMetricFamily(
            "anchorage_translator_quality",
            "Held-out quality of a translator, and of doing nothing, over its anchors.",
            labels=["translator", "method", "vectors", "measure"],
        )
        for each in found.qualities:
            for vectors, measures in each.measures.items():
                for measure, value in measures.items():
                    quality.add_metric([each.translator, each.method, vectors, measure], value)
        yield quality
