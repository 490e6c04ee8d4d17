"""Prometheus's text of the metrics that the database knows."""

from __future__ import annotations

from prometheus_client import generate_latest

from app.api.database_collector import make_registry
from app.services.upkeep.database_metrics import DatabaseMetrics, TranslatorQuality


def test_jobs_waiting_and_qualities_become_gauges():
    measures = {"translated": {"cosine": 0.5}, "do_nothing": {"cosine": 0.25}}
    found = DatabaseMetrics(
        {"queued": 2, "running": 1}, 3.5, [TranslatorQuality("tr_1", "irp", measures)]
    )
    text = generate_latest(make_registry(found)).decode()
    lines = {line for line in text.splitlines() if not line.startswith("#")}
    labels = 'measure="cosine",method="irp",translator="tr_1"'
    assert lines == {
        'anchorage_jobs{state="queued"} 2.0',
        'anchorage_jobs{state="running"} 1.0',
        "anchorage_queue_oldest_seconds 3.5",
        f'anchorage_translator_quality{{{labels},vectors="translated"}} 0.5',
        f'anchorage_translator_quality{{{labels},vectors="do_nothing"}} 0.25',
    }
