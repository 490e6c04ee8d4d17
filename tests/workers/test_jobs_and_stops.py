"""A job outlives the process that runs it: stops hand it back, and a crash after its work is no failure."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from starlette.testclient import TestClient

from app.main import create_app
from app.services import jobs
from app.settings import Settings
from app.storage import tables
from app.types import JobState
from workers.actors import RUNNERS


def long_bootstrap(client: TestClient) -> str:
    """A job of many steps on a small pool, and its encoders."""
    pool = np.random.default_rng(3).normal(size=(60, 5)).tolist()
    for name in ("a", "b"):
        client.post("/encoders", json={"name": name, "dim": 5})
    body = {"name": "grown", "source": "a", "target": "b", "source_pool": pool, "target_pool": pool, "size": 30}
    answer = client.post("/bootstrap", json={**body, "seeds": [[0, 0], [1, 1], [2, 2]], "options": {"steps": 2000}})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def wait_for(client: TestClient, job: str, state: str) -> dict:
    for _ in range(600):
        found = client.get(f"/jobs/{job}").json()
        if found["state"] == state:
            return found
        time.sleep(0.05)
    raise AssertionError(f"never {state}: {found}")


def test_a_stop_hands_a_running_job_back_and_does_not_count_as_a_try(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        job = long_bootstrap(client)
        wait_for(client, job, "running")
    for _ in range(jobs.ATTEMPTS):
        with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
            wait_for(client, job, "running")
    app = create_app(settings)
    with app.state.services.db.transaction() as session:
        row = session.get_one(tables.Job, job)
        assert (row.state, row.attempts) == (JobState.queued, 0)
        row.arguments = {**row.arguments, "settings": {**row.arguments["settings"], "steps": 20}}
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert wait_for(client, job, "succeeded")["attempts"] == 1


def test_a_job_whose_set_its_lost_worker_already_made_succeeds(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        job = long_bootstrap(client)
        client.post(f"/jobs/{job}/cancel")
        services = app.state.services
        wait_for(client, job, "cancelled")
        for _ in range(2):  # the second time as after a crash between the set and the job's end
            with services.db.transaction() as session:
                row = session.get_one(tables.Job, job)
                row.state, row.cancel_requested = JobState.queued, False
                row.arguments = {**row.arguments, "settings": {**row.arguments["settings"], "steps": 20}}
            jobs.run(services, job, RUNNERS)
            assert client.get(f"/jobs/{job}").json()["state"] == "succeeded"
        assert client.get("/anchor-sets/grown").json()["provenance"]["job"] == job


def test_a_job_in_the_middle_of_a_long_step_is_handed_back_too(tmp_path: Path) -> None:
    """What the worker cannot wait for is queued again, its try not counted, and its late end is not recorded."""
    app = create_app(Settings(data_dir=tmp_path))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        job = long_bootstrap(client)
        wait_for(client, job, "running")
        jobs.hand_back(app.state.services)
        with app.state.services.db.transaction() as session:
            row = session.get_one(tables.Job, job)
            assert (row.state, row.attempts) == (JobState.queued, 0)
        assert client.post(f"/jobs/{job}/cancel").json()["state"] == "cancelled"
        time.sleep(1)
        assert client.get(f"/jobs/{job}").json()["state"] == "cancelled"
