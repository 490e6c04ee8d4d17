"""The dashboard: a real Prometheus answers every query, and every metric in it exists."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import httpx2
import numpy as np
import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram

from app.observability import metrics
from tests.deploy.charts import CASES, CHART, ROOT, named, render
from tests.deploy.conftest import Pods, Prometheus
from tests.deploy.test_rules import ALERTS
from tests.waiting import until

BOARD = json.loads((CHART / "monitoring" / "dashboard.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]

#: what Grafana puts in
VARIABLES = {"$__rate_interval": "1m", "$namespace": ".*"}


def metrics_in(expression: str) -> set[str]:
    """Return the families that an expression reads."""
    names = set(re.findall(r"\b(?:anchorage|process)_\w+(?=[{\[) ]|$)", expression))
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}


def test_the_names_of_metrics_are_found():
    expression = 'sum(rate(anchorage_a_bucket{job="anchorage_x"}[1m])) / anchorage_b_total'
    assert metrics_in(expression) == {"anchorage_a", "anchorage_b_total"}


#: panels that stay empty: this service has no model hosts, and encodes and refuses nothing
EMPTY = {"Model hosts away", "Model hosts", "Refusals", "Tokens", "Loads of models"}


@pytest.fixture(scope="module")
def used(pods: Pods) -> Pods:
    """The service after a translator was fitted, used, and a job was run by the worker."""
    first = np.random.default_rng(1).normal(size=(40, 4))
    embeddings = {"first": first.tolist(), "second": (first @ np.diag([1, 2, 3, 4])).tolist()}
    pair = {"source": "first", "target": "second", "anchor_set": "items"}
    bodies = [
        ("/encoders", {"name": "first", "dim": 4}),
        ("/encoders", {"name": "second", "dim": 4}),
        ("/anchor-sets", {"name": "items", "embeddings": embeddings}),
        ("/translators", pair),
        *[("/translate", {**pair, "vectors": embeddings["first"][:3]})] * 3,
    ]

    def call(method: str, path: str, **more: Any) -> httpx2.Response:
        url = f"http://127.0.0.1:{pods.api_port}{path}"
        headers = {"Authorization": f"Bearer {pods.key}", **more.pop("headers", {})}
        answer = httpx2.request(method, url, headers=headers, trust_env=False, timeout=60, **more)
        assert answer.status_code < 300, answer.text
        return answer

    for path, body in bodies:
        call("POST", path, json=body)
    headers = {"Prefer": "respond-async"}
    method = {**pair, "method": "ridge"}
    job = call("POST", "/translators", json=method, headers=headers).headers["location"]
    until(lambda: call("GET", job).json()["state"] == "succeeded", 120, every_s=0.5)
    return pods


@pytest.fixture(scope="module")
def exported(prometheus: Prometheus) -> set[str]:
    """The families that Prometheus has read from the API and the worker."""

    def read() -> set[str]:
        found = {each["metric"] for each in prometheus.ask("targets/metadata")}
        return found if "anchorage_job_seconds" in found else set()

    return until(read, 60, every_s=0.5)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_prometheus_answers_every_query_of_the_dashboard(
    prometheus: Prometheus, exported: set[str], expression: str
) -> None:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    prometheus.ask("query", query=expression)
    assert metrics_in(expression) <= exported


@pytest.mark.timeout(300)
@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_the_panels_of_a_service_in_use_show_numbers(
    prometheus: Prometheus, used: Pods, panel: dict[str, Any]
) -> None:
    def shown() -> bool:
        results = []
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            results.append(prometheus.ask("query", query=expression)["result"])
        return all(results)

    if panel["title"] in EMPTY:
        assert not shown()
    else:
        until(shown, 60, every_s=0.5)


@pytest.mark.parametrize("name", ALERTS)
def test_the_alerts_read_metrics_that_exist(exported: set[str], name: str) -> None:
    assert metrics_in(ALERTS[name]["expr"]) <= exported


def test_the_query_of_the_autoscaler_counts_unfinished_jobs(
    prometheus: Prometheus, exported: set[str]
) -> None:
    assert "anchorage_jobs" in exported
    scaled = named(render(CASES["keda"]), "ScaledObject", "rel-anchorage-worker")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    prometheus.ask("query", query=query)
    # This Prometheus is not the operator's, which adds these labels.
    plain = re.sub(r"\{[^}]*\}", "", query)
    [result] = prometheus.ask("query", query=plain)["result"]
    assert result["value"][1] == "0"


def test_the_adapter_of_the_page_counts_unfinished_jobs(
    prometheus: Prometheus, exported: set[str]
) -> None:
    assert "anchorage_jobs" in exported
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    [block] = re.findall(r"^```yaml\n(rules:\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    [rule] = yaml.safe_load(block)["rules"]["external"]
    scaled = named(
        render("worker: {autoscaling: {enabled: true}}"),
        "HorizontalPodAutoscaler",
        "rel-anchorage-worker",
    )
    assert scaled["spec"]["metrics"][0]["external"]["metric"]["name"] == rule["name"]["as"]
    query = rule["metricsQuery"].replace("<<.Series>>", "anchorage_jobs")
    query = query.replace("<<.LabelMatchers>>", 'job="anchorage-api"')
    [result] = prometheus.ask("query", query=query)["result"]
    assert result["value"][1] == "0"


def test_the_dashboard_shows_every_metric():
    ours = {
        family.name + ("_total" if family.type == "counter" else "")
        for each in vars(metrics).values()
        if isinstance(each, Counter | Gauge | Histogram)
        for family in each.describe()
    }
    ours |= {"anchorage_jobs", "anchorage_queue_oldest_seconds", "anchorage_translator_quality"}
    assert ours <= {name for each in EXPRESSIONS for name in metrics_in(each)}


def test_panels_have_titles_and_units_and_do_not_overlap():
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]

    def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
        a, b = one["gridPos"], other["gridPos"]
        return (
            a["x"] < b["x"] + b["w"]
            and b["x"] < a["x"] + a["w"]
            and a["y"] < b["y"] + b["h"]
            and b["y"] < a["y"] + a["h"]
        )

    assert [
        (one["title"], other["title"])
        for one, other in combinations(BOARD["panels"], 2)
        if overlap(one, other)
    ] == []
    assert all(0 <= each["gridPos"]["x"] <= 24 - each["gridPos"]["w"] for each in BOARD["panels"])
