"""/console/jobs: the list, one job, and its end by the button."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from tests.console.test_overview import PAIR, connect, judge, stock

ASYNC = {"Prefer": "respond-async"}


def test_an_empty_project_says_what_becomes_a_job(client: TestClient) -> None:
    page = client.get("/console/jobs").text
    assert "anchorage quickstart" in page
    assert 'hx-trigger="every 10s"' in page


def test_a_finished_job_is_not_asked_for_again(
    client: TestClient, finished: Callable[..., dict[str, Any]]
) -> None:
    stock(client)
    job = client.post("/translators", json=PAIR, headers=ASYNC).json()
    finished(client, job["id"])
    page = client.get(f"/console/jobs/{job['id']}").text
    assert "succeeded" in page
    assert "hx-trigger" not in page
    assert f"/console/jobs/{job['id']}" in client.get("/console/jobs").text


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


def test_older_jobs_are_on_further_pages(
    client: TestClient, finished: Callable[..., dict[str, Any]]
) -> None:
    stock(client)
    jobs = [client.post("/translators", json=PAIR, headers=ASYNC).json() for _ in range(32)]
    first = client.get("/console/jobs").text
    assert jobs[-1]["id"] in first
    assert jobs[0]["id"] not in first
    older = first.partition('href="/console/jobs?')[2].partition('"')[0]
    assert jobs[0]["id"] in client.get(f"/console/jobs?{older}").text
    for job in jobs:
        finished(client, job["id"])


def test_an_unknown_job_is_not_found(client: TestClient) -> None:
    assert client.get("/console/jobs/" + "0" * 32).status_code == 404


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


def test_a_job_of_a_migration_has_the_name_of_its_store(
    serve: Callable[..., TestClient],
    tmp_path: Path,
    finished: Callable[..., dict[str, Any]],
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    client = serve(stores={"main": str(lake)})
    connect(client, lake, stock(client)["first"])
    plan = {"store": "docs", "target": "second", "anchor_set": "items", "force_space": True}
    answer = client.post("/migrations", json=plan)
    assert answer.status_code == 201, answer.text
    move = answer.json()["id"]
    job = client.post(f"/migrations/{move}/run").json()
    assert finished(client, job["id"])["state"] == "succeeded"
    page = client.get("/console/jobs").text
    assert ">Run: docs</a>" in page
    assert "60 rows have a new vector." in page
    assert 'href="/console/stores/docs"' in client.get(f"/console/jobs/{job['id']}").text


def test_an_evaluation_is_a_sentence(
    serve: Callable[..., TestClient], finished: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    client = serve(stores={"main": str(tmp_path)})
    job = judge(client, finished, tmp_path)
    assert "on 30 judged queries" in client.get(f"/console/jobs/{job}").text
    assert "on 30 judged queries" in client.get("/console/jobs").text
    vectors = {"vectors": [[1.0] * 8, [2.0, *[1.0] * 7]], "native": [[1.0] * 6, [2.0, *[1.0] * 5]]}
    plain = client.post("/evaluate", json={**PAIR, **vectors}, headers=ASYNC).json()
    found = finished(client, plain["id"])["result"]["translated"]
    page = client.get(f"/console/jobs/{plain['id']}").text
    assert f"Recall@1 {found['recall']:.3f} among 2 items" in page
