"""The embedded worker: what it takes up at start, and what it gives up."""

from __future__ import annotations

import time
from dataclasses import asdict

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from app.main import create_app, make_services
from app.maths.bootstrap import Settings as Bootstrap
from app.settings import Settings
from app.storage import tables

POOLS = {
    "source_pool": torch.tensor(np.random.default_rng(0).normal(size=(30, 4)), dtype=torch.float32),
    "target_pool": torch.tensor(np.random.default_rng(1).normal(size=(30, 3)), dtype=torch.float32),
}


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


def ended(client, job_id):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        job = client.get(f"/jobs/{job_id}").json()
        if job["finished_at"] is not None:
            return job
        time.sleep(0.02)
    raise AssertionError(job)


@pytest.fixture
def settings(tmp_path):
    return Settings(data_dir=tmp_path)


def test_what_an_earlier_process_left_is_taken_up_and_the_worn_out_is_given_up(settings):
    queued, running, tired, asked, broken, strange, done = write_jobs(
        settings,
        {"state": "queued"},
        {"state": "running", "attempts": 1},
        {"state": "running", "attempts": 3},
        {"state": "running", "attempts": 1, "cancel_requested": True},
        {"state": "queued", "arguments": {"name": "s4", "blobs": {"source_pool": "0" * 64}, "settings": {"size": 6}}},
        {"state": "queued", "kind": "unheard-of"},
        {"state": "succeeded", "attempts": 1, "result": {"anchor_set": "s6"}, "finished_at": tables.now()},
    )
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        job = ended(client, queued)
        assert (job["state"], job["attempts"], job["result"]["anchor_set"]) == ("succeeded", 1, "s0")
        assert client.get("/anchor-sets/s0").json()["provenance"]["job"] == queued

        job = ended(client, running)
        assert (job["state"], job["attempts"]) == ("succeeded", 2)
        assert client.get("/anchor-sets/s1").status_code == 200

        job = ended(client, tired)
        assert (job["state"], job["error"]["code"], job["result"]) == ("failed", "attempts-exhausted", None)
        assert client.get("/anchor-sets/s2").status_code == 404

        job = ended(client, asked)
        assert (job["state"], job["error"]) == ("cancelled", None)
        assert client.get("/anchor-sets/s3").status_code == 404

        job = ended(client, broken)
        assert (job["state"], job["error"]["code"]) == ("failed", "internal")
        assert "log" in job["error"]["detail"]
        assert "0" * 64 not in str(job["error"])

        # A kind that no route can describe: read from the database itself.
        deadline = time.monotonic() + 30
        while True:
            with client.app.state.services.db.transaction() as session:
                row = session.get_one(tables.Job, strange)
            if row.finished_at is not None or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        assert (row.state, row.error["code"]) == ("failed", "internal")

        assert client.get(f"/jobs/{done}").json()["attempts"] == 1
        assert client.get("/readyz").json()["worker"] is True  # one job's fault is not the worker's end


def test_a_job_that_was_running_when_the_service_stopped_is_run_again(settings):
    steps = {"steps": 2000, "sinkhorn_steps": 50}
    body = {"name": "s", "source": "a", "target": "b", "seeds": [[0, 0], [1, 1]], "size": 200, "options": steps}
    pools = {
        "source_pool": np.random.default_rng(0).normal(size=(300, 4)).tolist(),
        "target_pool": np.random.default_rng(1).normal(size=(300, 3)).tolist(),
    }
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        for name, dim in (("a", 4), ("b", 3)):
            client.post("/encoders", json={"name": name, "dim": dim})
        job_id = client.post("/bootstrap", json={**body, **pools}).json()["id"]
        deadline = time.monotonic() + 20
        while not client.get(f"/jobs/{job_id}").json()["progress"].get("done"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        services = client.app.state.services
        with services.db.transaction() as session:
            session.get_one(tables.Job, job_id).cancel_requested = True
        ended(client, job_id)
    # What a process that was killed in the middle of it would have left in the row.
    app = create_app(settings)
    with app.state.services.db.transaction() as session:
        row = session.get_one(tables.Job, job_id)
        row.state, row.cancel_requested, row.finished_at = "running", False, None
        row.arguments = {**row.arguments, "settings": {**row.arguments["settings"], "steps": 2, "sinkhorn_steps": 1}}
    with TestClient(app, base_url="http://127.0.0.1") as client:
        job = ended(client, job_id)
        assert (job["state"], job["attempts"]) == ("succeeded", 2)
        assert client.get("/anchor-sets/s").json()["encoders"] == ["a", "b"]
