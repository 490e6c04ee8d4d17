"""/metrics: what Prometheus reads. That no name is in it: see test_projects.py."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.demo.server import free_port
from app.ops import metrics


def read(client):
    """The families of /metrics, and every sample by its name and labels."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(answer.text))
    samples = {
        (row.name, frozenset(row.labels.items())): row.value
        for family in families
        for row in family.samples
    }
    assert len(samples) == sum(len(family.samples) for family in families)
    return {family.name for family in families}, samples


def value(client, name, **labels):
    return read(client)[1].get((name, frozenset(labels.items())), 0.0)


@pytest.mark.parametrize(
    ("path", "route", "status"),
    [
        ("/encoders", "/encoders", "200"),
        ("/encoders/zq", "/encoders/{name}", "404"),
        ("/zq/nothing", "none", "404"),
        ("/livez", "/livez", "200"),
    ],
)
def test_requests_are_counted_by_route_and_not_by_path(client, path, route, status):
    labels = {"method": "GET", "route": route, "status": status}
    before = value(client, "anchorage_request_seconds_count", **labels)
    refusals = value(client, "anchorage_refused_total", code="encoder-not-found")
    client.get(path)
    assert value(client, "anchorage_request_seconds_count", **labels) == before + 1
    refused = value(client, "anchorage_refused_total", code="encoder-not-found") - refusals
    assert refused == (path == "/encoders/zq")
    assert "zq" not in client.get("/metrics").text


@pytest.mark.parametrize("redis_is_up", [1, 0])
def test_what_the_service_depends_on_and_its_disk_are_shown(
    serve, redis_url, redis_prefix, redis_is_up
):
    metrics.DEPENDENCY_UP.clear()  # what other services of this process have set
    address = redis_url if redis_is_up else f"redis://127.0.0.1:{free_port()}/0"
    client = serve(redis_url=address, redis_prefix=redis_prefix)
    up = {"database": 1, "disk": 1, "models": 1, "redis": redis_is_up}
    for dependency, number in up.items():
        assert value(client, "anchorage_dependency_up", dependency=dependency) == number
    assert value(client, "anchorage_data_bytes", state="free") > 0
