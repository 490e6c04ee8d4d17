"""The metrics that either database knows, and that no client's name is among it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from app.services.translators import translators
from app.services.upkeep.database_metrics import (
    DatabaseMetrics,
    read_metrics,
)
from app.storage import tables
from tests.services.helpers import CONTEXT, ON_EACH_DATABASE

PROJECT = "p"


def test_an_empty_service_shows_zeros(services):
    assert read_metrics(services, PROJECT) == DatabaseMetrics(
        {"queued": 0, "running": 0}, 0.0, {}, {}
    )


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
    found = read_metrics(services, PROJECT)
    assert found.jobs == {"queued": 2, "running": 1}
    assert 120 <= found.oldest_queued_s < 180


def test_a_measured_translator_shows_its_held_out_quality(stocked):
    request = translators.FitRequest("a", "b", "s", "procrustes", {})
    fitted = translators.fit(
        stocked, CONTEXT, *translators.find_pair(stocked, PROJECT, request), request
    )
    assert read_metrics(stocked, PROJECT).qualities == {}
    report = translators.find_with_report(stocked, PROJECT, fitted.id).report
    assert read_metrics(stocked, PROJECT).qualities == {
        (fitted.id, "procrustes", vectors, name): report["held_out"][vectors][name]
        for vectors in ("translated", "do_nothing")
        for name in ("cosine", "recall", "mrr")
    }


@pytest.mark.parametrize("report", [None, {"held_out": None}])
def test_a_translator_without_numbers_is_left_out(stocked, report):
    request = translators.FitRequest("a", "b", "s", "irp", {})
    source, target = translators.find_pair(stocked, PROJECT, request)
    with stocked.db.transaction() as session:
        session.add(
            tables.TranslatorRow(
                project=PROJECT,
                content="t",
                source_id=source.id,
                target_id=target.id,
                method="irp",
                options={},
                report=report,
            )
        )
    assert read_metrics(stocked, PROJECT).qualities == {}
