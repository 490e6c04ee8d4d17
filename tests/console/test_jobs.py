"""/console/jobs: the list, one job, and its end by the button."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.testclient import TestClient

from tests.console.test_overview import PAIR, stock

ASYNC = {"Prefer": "respond-async"}


def test_a_failed_job_shows_its_problem(
    client: TestClient, finished: Callable[..., dict[str, Any]]
) -> None:
    stock(client, rows=12)
    body = {**PAIR, "min_quality": {"recall": 1.0}, "method": "irp"}
    job = client.post("/translators", json=body, headers=ASYNC).json()
    assert finished(client, job["id"])["state"] == "failed"
    page = client.get(f"/console/jobs/{job['id']}").text
    assert "quality-below-minimum" in page


def test_the_button_cancels_a_job_that_runs(
    client: TestClient,
    endless_bootstrap: dict[str, Any],
    finished: Callable[..., dict[str, Any]],
) -> None:
    stock(client)
    job = client.post("/bootstrap", json=endless_bootstrap).json()
    page = client.get("/console/jobs").text
    assert f'hx-post="/console/jobs/{job["id"]}/cancel"' in page
    assert "hx-confirm=" in page
    assert 'hx-trigger="every 2s"' in page
    answer = client.post(f"/console/jobs/{job['id']}/cancel")
    assert answer.status_code == 200
    assert finished(client, job["id"])["state"] == "cancelled"
    again = client.post(f"/console/jobs/{job['id']}/cancel")
    assert again.status_code == 409


def test_a_key_that_only_reads_sees_no_button(
    locked: TestClient,
    new_key: Callable[..., str],
    bearing: Callable[[str], dict[str, str]],
    endless_bootstrap: dict[str, Any],
) -> None:
    admin, reader = (bearing(new_key(locked, scope)) for scope in ("admin", "read"))
    for name, dim in (("first", 8), ("second", 6)):
        locked.post("/encoders", json={"name": name, "dim": dim}, headers=admin)
    job = locked.post("/bootstrap", json=endless_bootstrap, headers=admin).json()
    assert "/cancel" in locked.get("/console/jobs", headers=admin).text
    assert "/cancel" not in locked.get("/console/jobs", headers=reader).text
    assert locked.post(f"/console/jobs/{job['id']}/cancel", headers=reader).status_code == 403
    assert locked.post(f"/console/jobs/{job['id']}/cancel", headers=admin).status_code == 200


def test_a_job_of_another_project_is_not_found(
    locked: TestClient, new_key: Callable[..., str], bearing: Callable[[str], dict[str, str]]
) -> None:
    ours, theirs = (bearing(new_key(locked, "admin", each)) for each in ("default", "other"))
    for name, dim in (("first", 8), ("second", 6)):
        locked.post("/encoders", json={"name": name, "dim": dim}, headers=ours)
    vectors = {"first": [[1.0] * 8, [2.0] * 8], "second": [[1.0] * 6, [0.5] * 6]}
    locked.post("/anchor-sets", json={"name": "items", "embeddings": vectors}, headers=ours)
    job = locked.post("/translators", json=PAIR, headers={**ours, **ASYNC}).json()
    assert locked.get(f"/console/jobs/{job['id']}", headers=ours).status_code == 200
    assert locked.get(f"/console/jobs/{job['id']}", headers=theirs).status_code == 404
