"""The embedded worker: what it takes up at start."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from starlette.testclient import TestClient

from app.db import blobs, tables
from app.jobs import worker as runner
from app.main import create_app
from app.settings import Settings
from app.wiring import make_services
from tests.waiting import until

POOLS = {
    f"{side}_pool": torch.randn(100, dim, generator=torch.Generator().manual_seed(dim))
    for side, dim in (("source", 4), ("target", 3))
}

#: what the worker of a process that was killed leaves in its job's row
LOST = {"state": "running", "lease": "0" * 32, "lease_until": tables.now() - timedelta(seconds=1)}


def write_jobs(settings: Settings, *rows: dict) -> list[str]:
    """Leave jobs behind as a killed process does: as rows and blobs."""
    services = make_services(settings)
    services.db.upgrade()
    blobs = {field: [services.blobs.put({"pool": pool})] for field, pool in POOLS.items()}
    ids = []
    with services.db.transaction() as session:
        encoders = {
            name: tables.EncoderRow(name=name, kind="external", dim=dim, modality="text")
            for name, dim in (("a", 4), ("b", 3))
        }
        session.add_all(encoders.values())
        session.flush()
        for number, row in enumerate(rows):
            arguments = {
                "name": f"s{number}",
                "source": "a",
                "target": "b",
                "seeds": [[0, 0], [1, 1], [2, 2]],
                "settings": {"size": 6, "attempts": 1},
                "min_precision": 0.0,
                "made_by": {name: each.id for name, each in encoders.items()},
                "blobs": blobs,
            }
            job = tables.JobRow(
                **{"kind": "bootstrap", "arguments": arguments, "progress": {}, **row}
            )
            session.add(job)
            session.flush()
            ids.append(job.id)
    services.db.close()
    return ids


def ended(client: TestClient, job_id: str) -> tables.JobRow:
    def row() -> tables.JobRow | None:
        with client.app.state.services.db.transaction() as session:
            found = session.get_one(tables.JobRow, job_id)
        return found if found.finished_at is not None else None

    return until(row)


@pytest.fixture
def settings(tmp_path):
    return Settings(data_dir=tmp_path)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(runner, "JOB_BACKOFF_S", 0.01)
    monkeypatch.setattr(blobs, "RETRY_S", 0)


def serve(settings: Settings) -> TestClient:
    return TestClient(create_app(settings), base_url="http://127.0.0.1")


def test_what_an_earlier_process_left_is_taken_up_and_what_nobody_can_run_does_not_end_the_worker(
    settings,
):
    queued, lost, strange = write_jobs(
        settings,
        {"state": "queued"},
        {**LOST, "attempts": 1},
        {"state": "queued", "kind": "unheard-of"},
    )
    with serve(settings) as client:
        for place, job_id in enumerate((queued, lost)):
            job = ended(client, job_id)
            assert (job.state, job.attempts) == (
                "succeeded",
                1,
            )  # a second try that got further than any before counts anew
            assert client.get(f"/anchor-sets/s{place}").json()["provenance"]["job"] == job_id
        job = ended(client, strange)
        assert (job.state, job.error["code"], job.attempts) == (
            "failed",
            "internal",
            runner.MAX_ATTEMPTS,
        )
        assert client.get("/readyz").json()["worker"] is True
