"""What Prometheus learns from either database, and that no client's name is among it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from prometheus_client import generate_latest

from app.errors import DatabaseUnavailable
from app.services.context import Services
from app.services.translators import translators
from app.services.upkeep import database_metrics
from app.storage import tables
from app.storage.db import Database
from tests.services.helpers import CONTEXT

PROJECT = "p"


def shown(services: Services) -> dict[str, float]:
    lines = generate_latest(database_metrics.collect(services, PROJECT)).decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_an_empty_service_shows_zeros(services):
    assert shown(services) == {
        **{f'anchorage_jobs{{state="{state}"}}': 0 for state in ("queued", "running")},
        "anchorage_queue_oldest_seconds": 0,
    }


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
    found = shown(services)
    assert found['anchorage_jobs{state="queued"}'] == 2
    assert found['anchorage_jobs{state="running"}'] == 1
    assert 'anchorage_jobs{state="failed"}' not in found
    assert 120 <= found["anchorage_queue_oldest_seconds"] < 180


def test_a_measured_translator_shows_its_held_out_quality(stocked):
    request = translators.Request("a", "b", "s", "procrustes", {})
    fitted = translators.fit(
        stocked, CONTEXT, *translators.pair(stocked, PROJECT, request), request
    )
    assert not any("quality" in name for name in shown(stocked))  # not measured yet
    report = translators.report(stocked, PROJECT, fitted.id).report
    found = {name: value for name, value in shown(stocked).items() if "quality" in name}
    for vectors in ("translated", "do_nothing"):
        for measure in ("cosine", "recall", "mrr"):
            if vectors in report["held_out"]:
                labels = f'measure="{measure}",method="procrustes",translator="{fitted.id}",vectors="{vectors}"'
                assert (
                    found[f"anchorage_translator_quality{{{labels}}}"]
                    == report["held_out"][vectors][measure]
                )
    assert found


@pytest.mark.parametrize("report", [None, {}, {"held_out": None}])
def test_a_translator_without_numbers_is_left_out(stocked, report):
    request = translators.Request("a", "b", "s", "irp", {})
    source, target = translators.pair(stocked, PROJECT, request)
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
    assert not any("quality" in name for name in shown(stocked))


def test_no_name_that_a_client_gave_is_shown(services):
    with services.db.transaction() as session:
        session.add(
            tables.JobRow(
                project="secret-project",
                kind="bootstrap",
                state="queued",
                arguments={"name": "secret-set"},
            )
        )
    assert "secret" not in generate_latest(database_metrics.collect(services, PROJECT)).decode()


def test_without_a_database_there_are_no_figures(services, monkeypatch):
    monkeypatch.setattr("app.storage.db.CONNECT_FOR_S", 0.1)
    away = Database("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(DatabaseUnavailable):
        database_metrics.collect(replace(services, db=away), PROJECT)
    away.close()
