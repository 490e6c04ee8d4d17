"""The embedded worker: what it takes up at start, what it gives up, and what its stop hands back."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from datetime import timedelta

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from starlette.testclient import TestClient

from app.errors import InvalidSeeds
from app.main import create_app
from app.maths.bootstrap.paper import Settings as Bootstrap
from app.services import jobs
from app.settings import Settings
from app.storage import blobs, tables
from app.types import JobState
from app.wiring import make_services
from workers.runners import RUNNERS

POOLS = {
    "source_pool": torch.tensor(np.random.default_rng(0).normal(size=(30, 4)), dtype=torch.float32),
    "target_pool": torch.tensor(np.random.default_rng(1).normal(size=(30, 3)), dtype=torch.float32),
}

#: what the worker of a process that was killed leaves in its job's row
LOST = {"state": "running", "lease": "0" * 32, "lease_until": tables.now() - timedelta(seconds=1)}


def write_jobs(settings: Settings, *rows: dict) -> list[str]:
    """Leave jobs behind as a process that was killed would: rows and blobs, straight into the storage."""
    services = make_services(settings)
    services.db.migrate()
    blobs = {field: services.blobs.put({"pool": pool}) for field, pool in POOLS.items()}
    ids = []
    with services.db.transaction() as session:
        for name, dim in (("a", 4), ("b", 3)):
            session.add(tables.Encoder(name=name, kind="external", dim=dim, modality="text"))
        for number, row in enumerate(rows):
            arguments = {
                "name": f"s{number}",
                "source": "a",
                "target": "b",
                "seeds": [[0, 0], [1, 1], [2, 2]],
                "settings": asdict(Bootstrap(size=6, steps=5)),
                "blobs": blobs,
            }
            job = tables.Job(**{"kind": "bootstrap", "arguments": arguments, "progress": {}, **row})
            session.add(job)
            session.flush()
            ids.append(job.id)
    services.db.close()
    return ids


def row_of(client: TestClient, job_id: str) -> tables.Job:
    with client.app.state.services.db.transaction() as session:
        return session.get_one(tables.Job, job_id)


def until(client: TestClient, job_id: str, true) -> tables.Job:
    deadline = time.monotonic() + 60
    while not true(row := row_of(client, job_id)):
        assert time.monotonic() < deadline, (row.state, row.attempts, row.progress, row.error)
        time.sleep(0.02)
    return row


def ended(client: TestClient, job_id: str) -> tables.Job:
    return until(client, job_id, lambda row: row.finished_at is not None)


@pytest.fixture
def settings(tmp_path):
    return Settings(data_dir=tmp_path)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(jobs, "BACKOFF_S", 0.01)
    monkeypatch.setattr(blobs, "RETRY_S", 0)


def serve(settings: Settings) -> TestClient:
    return TestClient(create_app(settings), base_url="http://127.0.0.1")


def test_what_an_earlier_process_left_is_taken_up_and_the_worn_out_is_given_up(settings):
    queued, lost, tired, asked, broken, strange, done = write_jobs(
        settings,
        {"state": "queued"},
        {**LOST, "attempts": 1},
        {**LOST, "attempts": jobs.ATTEMPTS},
        {**LOST, "attempts": 1, "cancel_requested": True},
        {
            "state": "queued",
            "arguments": {"name": "s4", "seeds": [], "blobs": {"source_pool": "0" * 64}, "settings": {"size": 6}},
        },
        {"state": "queued", "kind": "unheard-of"},
        {"state": "succeeded", "attempts": 1, "result": {"anchor_set": "s6"}, "finished_at": tables.now()},
    )
    with serve(settings) as client:
        job = ended(client, queued)
        assert (job.state, job.attempts, job.result["anchor_set"]) == ("succeeded", 1, "s0")
        assert client.get("/anchor-sets/s0").json()["provenance"]["job"] == queued

        job = ended(client, lost)
        assert (job.state, job.attempts) == ("succeeded", 1)  # the second try, which got further than any before
        assert client.get("/anchor-sets/s1").status_code == 200

        job = ended(client, tired)
        assert (job.state, job.error["code"], job.result) == ("failed", "attempts-exhausted", None)
        assert client.get("/anchor-sets/s2").status_code == 404

        job = ended(client, asked)
        assert (job.state, job.error) == ("cancelled", None)
        assert client.get("/anchor-sets/s3").status_code == 404

        job = ended(client, broken)
        assert (job.state, job.error["code"], job.attempts) == ("failed", "blob-missing", 1)
        assert "0" * 64 not in str(job.error)

        job = ended(client, strange)
        assert (job.state, job.error["code"], job.attempts) == ("failed", "internal", jobs.ATTEMPTS)

        assert row_of(client, done).attempts == 1
        assert client.get("/readyz").json()["worker"] is True  # one job's fault is not the worker's end


def set_steps(app: FastAPI, job_id: str, steps: int) -> None:
    services = app.state.services
    with services.db.transaction() as session:
        row = session.get_one(tables.Job, job_id)
        row.arguments = {**row.arguments, "settings": asdict(Bootstrap(size=6, steps=steps))}
    services.db.close()


def test_each_stop_hands_the_running_job_back_and_no_try_counts(settings):
    (job_id,) = write_jobs(settings, {"state": "queued"})
    set_steps(create_app(settings), job_id, 1_000_000)
    for _ in range(3):
        app = create_app(settings)
        with TestClient(app, base_url="http://127.0.0.1") as client:
            until(client, job_id, lambda row: row.state == JobState.running and row.progress)
        row = row_of(client, job_id)
        assert (row.state, row.attempts) == (JobState.queued, 0)
        app.state.services.db.close()
    set_steps(app, job_id, 5)
    with serve(settings) as client:
        assert ended(client, job_id).attempts == 1
        assert client.get("/anchor-sets/s0").status_code == 200


def test_facts_of_the_progress_and_members_of_the_error_reach_the_client_and_what_is_no_number_is_null(settings, monkeypatch):
    def work(services, row, progress):
        progress(1, 2, {"loss": math.nan, "agreement": 0.5, "pairs": 30})
        raise InvalidSeeds("these two are wrong", field="seeds", rows=[3, 5])

    monkeypatch.setitem(RUNNERS, "telling", work)
    with serve(settings) as client:
        job_id = jobs.submit(client.app.state.services, "default", "telling", {}).id
        ended(client, job_id)
        job = client.get(f"/jobs/{job_id}").json()
        (event,) = [line for line in client.get(f"/jobs/{job_id}/events").text.splitlines() if line.startswith("data: ")]
    assert job["progress"] == {"done": 1, "total": 2, "loss": None, "agreement": 0.5, "pairs": 30}
    told = {"code": "invalid-seeds", "detail": "these two are wrong", "field": "seeds", "rows": [3, 5], "row_count": 2}
    assert job["error"] == told
    assert json.loads(event.removeprefix("data: ")) == job
