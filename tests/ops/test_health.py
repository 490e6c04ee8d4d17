"""/livez and /readyz. For an unavailable PostgreSQL see test_postgres.py."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from threading import Event, Thread

from prometheus_client import CollectorRegistry, generate_latest

from app.db import tables
from app.demo.server import free_port
from app.ops.database_metrics import DatabaseMetrics, read_metrics
from app.ops.health import DatabaseCollector
from tests.disks import fill_disk, small_disk
from tests.helpers import ON_EACH_DATABASE
from tests.waiting import until


def test_a_service_of_one_process_is_ready_with_its_worker(client):
    assert client.get("/livez").json()["status"] == "ok"
    answer = client.get("/readyz")
    there = {"database": True, "worker": True, "redis": None, "models": True}
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", **there})
    for path in ("/livez", "/readyz"):  # some load balancers ask so
        assert client.head(path).status_code == 200


def test_a_job_is_written_down_while_redis_is_away(serve, endless_bootstrap):
    degraded = serve(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    for name, dim in (("first", 8), ("second", 6)):
        degraded.post("/encoders", json={"name": name, "dim": dim})
    answer = degraded.post("/bootstrap", json=endless_bootstrap)
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert degraded.get(answer.headers["location"]).json()["state"] == "queued"


def test_a_server_that_loads_the_model_of_a_name_says_so(serve):
    client, loaded = serve(), Event()
    client.app.state.loading = Thread(target=loaded.wait, daemon=True)
    client.app.state.loading.start()
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "starting")
    loaded.set()
    until(lambda: client.get("/readyz").json()["status"] == "ok")


def test_a_stopping_server_says_so_and_closes_its_connections(serve):
    client = serve()
    assert "connection" not in client.get("/encoders").headers
    # as the handler of SIGTERM does: see e2e/test_rolling.py
    client.app.state.admission.stopping = True
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "stopping")
    assert answer.headers["retry-after"] == "1"
    answer = client.get("/encoders")
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")


@ON_EACH_DATABASE
def test_unfinished_jobs_of_all_projects_and_encoders_become_gauges(services):
    assert read_metrics(services) == DatabaseMetrics({"queued": 0, "running": 0}, 0.0, {})
    job = {"kind": "bootstrap", "arguments": {}}
    with services.db.transaction() as session:
        for state, project, minutes in (
            ("queued", "p", 1),
            ("queued", "q", 2),
            ("running", "p", 99),
            ("failed", "p", 99),
        ):
            made = tables.now() - timedelta(minutes=minutes)
            moments = {"created_at": made, "finished_at": made if state == "failed" else None}
            session.add(tables.JobRow(project=project, state=state, **job, **moments))
    found = read_metrics(services)
    assert 120 <= found.oldest_queued_s < 180
    registry = CollectorRegistry()
    registry.register(DatabaseCollector(replace(found, oldest_queued_s=3.5, encoders={"moved": 1})))
    text = generate_latest(registry).decode()
    assert {line for line in text.splitlines() if not line.startswith("#")} == {
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
