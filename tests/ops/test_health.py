"""/livez and /readyz. For an unavailable PostgreSQL see test_postgres.py."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from app.demo.server import free_port
from app.ops.database_metrics import DatabaseMetrics
from app.ops.health import DatabaseCollector
from tests.disks import fill_disk, small_disk


def test_a_service_of_one_process_is_ready_with_its_worker(client):
    assert client.get("/livez").json()["status"] == "ok"
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "status": "ok",
            "database": True,
            "worker": True,
            "redis": None,
            "models": True,
        },
    )
    assert [client.head(path).status_code for path in ("/livez", "/readyz")] == [
        200,
        200,
    ]  # some load balancers ask so


@pytest.fixture
def degraded(serve):
    return serve(redis_url=f"redis://127.0.0.1:{free_port()}/0")


def test_a_job_is_written_down_while_redis_is_away(degraded):
    for name in ("first", "second"):
        degraded.post("/encoders", json={"name": name, "dim": 2})
    pool = [[float(i % 7), float(i % 11)] for i in range(100)]
    names = {"name": "grown", "source": "first", "target": "second"}
    body = {
        **names,
        "source_pool": pool,
        "target_pool": pool,
        "seeds": [[0, 0], [1, 1]],
        "size": 2,
    }
    answer = degraded.post("/bootstrap", json=body)
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert degraded.get(answer.headers["location"]).json()["state"] == "queued"


def test_a_stopping_server_says_so_and_closes_its_connections(serve):
    client = serve()
    assert "connection" not in client.get("/encoders").headers
    client.app.state.admission.stopping = (
        True  # as the handler of SIGTERM does: see e2e/test_rolling.py
    )
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["status"], answer.headers["retry-after"]) == (
        503,
        "stopping",
        "1",
    )
    answer = client.get("/encoders")
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")


def test_jobs_and_encoders_become_gauges():
    registry = CollectorRegistry()
    registry.register(
        DatabaseCollector(DatabaseMetrics({"queued": 2, "running": 1}, 3.5, {"moved": 1}))
    )
    text = generate_latest(registry).decode()
    lines = {line for line in text.splitlines() if not line.startswith("#")}
    assert lines == {
        'anchorage_jobs{state="queued"} 2.0',
        'anchorage_jobs{state="running"} 1.0',
        "anchorage_queue_oldest_seconds 3.5",
        'anchorage_encoders_checked{result="moved"} 1.0',
    }


def test_on_a_full_disk_a_service_is_degraded_and_a_restarted_one_serves_reads(tmp_path, serve):
    with small_disk(tmp_path / "disk", 40_000) as disk:
        client = serve(data_dir=disk)
        assert client.get("/readyz").json()["status"] == "ok"
        client.post("/encoders", json={"name": "x", "dim": 2})
        fill_disk(disk, 0)
        client = serve(data_dir=disk)
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert [each["name"] for each in client.get("/encoders").json()["encoders"]] == ["x"]
        assert client.post("/encoders", json={"name": "y", "dim": 2}).status_code == 503
