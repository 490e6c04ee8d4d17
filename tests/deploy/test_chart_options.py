"""What the options of the chart add: GPUs, autoscaling, network policies and monitoring."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from app.encoders.hosting.addresses import HostAddress

from app.api import health
from tests.deploy.charts import (
    CASES,
    CHART,
    EVERYTHING,
    container,
    helm,
    named,
    of_kind,
    render,
    templates,
    variables,
)

ALL = "rel-anchorage"


def test_each_gpu_is_a_model_host_that_the_api_knows_by_the_name_of_its_pod():
    objects = render(EVERYTHING)
    found = templates(objects)
    addresses = [
        HostAddress.parse(each)
        for each in variables(found["api"])["ANCHORAGE_ENCODE_AT"].split(",")
    ]
    assert [(each.name, each.port) for each in addresses] == [
        (f"{ALL}-gpu-{pod}.{ALL}-gpu", port) for pod in range(2) for port in (8091, 8092)
    ]
    listens = HostAddress.parse(variables(found["gpu"])["ANCHORAGE_ENCODE_LISTEN"])
    ports = {each["name"]: each["containerPort"] for each in container(found["gpu"])["ports"]}
    assert [ports[f"models-{gpu}"] for gpu in range(2)] == [listens.next(n).port for n in range(2)]
    assert (ports["metrics"], ports["metrics-1"]) == (9100, 9101)
    stateful = named(objects, "StatefulSet", f"{ALL}-gpu")
    service = named(objects, "Service", stateful["spec"]["serviceName"])
    assert service["spec"]["clusterIP"] == "None"
    assert [each["port"] for each in service["spec"]["ports"]] == [8091, 8092]


def test_gpu_pods_ask_for_gpus_and_run_where_they_are():
    pod = templates(render(EVERYTHING))["gpu"]["spec"]
    assert container({"spec": pod})["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    plain = templates(render(CASES["gpu"]))["gpu"]["spec"]
    assert "runtimeClassName" not in plain
    assert variables(templates(render())["worker"])["ANCHORAGE_DEVICES"] == "cpu"


def test_without_encoding_gpu_workers_only_run_jobs():
    objects = render("gpuWorker: {enabled: true, encode: {enabled: false}}")
    text = json.dumps(objects)
    assert "ANCHORAGE_ENCODE" not in text
    assert "encode-key" not in text
    assert not [each for each in of_kind(objects, "NetworkPolicy") if "8091" in json.dumps(each)]


def test_the_api_scales_by_cpu_and_the_workers_by_unfinished_jobs():
    objects = render(EVERYTHING)
    for name in ("api", "worker"):
        scaled = named(objects, "HorizontalPodAutoscaler", f"{ALL}-{name}")["spec"]
        assert scaled["scaleTargetRef"]["name"] == f"{ALL}-{name}"
        assert "replicas" not in named(objects, "Deployment", f"{ALL}-{name}")["spec"]
        [metric] = scaled["metrics"]
        if name == "api":
            assert metric["resource"]["name"] == "cpu"
        else:
            assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "2"}
    keda = named(render(CASES["keda"]), "ScaledObject", f"{ALL}-worker")["spec"]
    assert keda["scaleTargetRef"] == {"name": f"{ALL}-worker"}
    [trigger] = keda["triggers"]
    assert trigger["metadata"]["threshold"] == "2"
    plain = render()
    assert not of_kind(plain, "HorizontalPodAutoscaler", "ScaledObject")
    assert named(plain, "Deployment", f"{ALL}-api")["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("component", "scaling", "message"),
    [
        ("api", {"minReplicas": 9}, "api.autoscaling.minReplicas is above maxReplicas"),
        ("worker", {"minReplicas": 9}, "worker.autoscaling.minReplicas is above maxReplicas"),
        ("worker", {"minReplicas": 0}, "must be at least 1 with kind hpa"),
        ("worker", {"minReplicas": 0, "kind": "keda", "prometheus": "http://a"}, None),
    ],
)
def test_bounds_of_autoscaling_that_kubernetes_would_refuse_are_refused(
    component, scaling, message
):
    values = {component: {"autoscaling": {"enabled": True, **scaling}}}
    answer = helm("template", "a", str(CHART), values=json.dumps(values))
    assert (answer.returncode == 0) == (message is None), answer.stderr
    assert (message or "") in answer.stderr


@pytest.mark.parametrize("name", ["Anchorage", "my_release", "-a", "a-", "1a", "a.b"])
def test_names_that_no_object_may_have_are_refused(name):
    for value in ("fullnameOverride", "nameOverride"):
        assert helm("template", "a", str(CHART), values=json.dumps({value: name})).returncode != 0
        render(json.dumps({value: "vectors-2"}))


def test_pods_of_the_api_prefer_different_nodes_unless_the_user_spreads_them():
    found = templates(render())
    [spread] = found["api"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    selector = named(render(), "Deployment", f"{ALL}-api")["spec"]["selector"]
    assert spread["labelSelector"] == selector
    assert "topologySpreadConstraints" not in found["worker"]["spec"]
    mine = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    values = json.dumps({"api": {"topologySpreadConstraints": [mine]}})
    assert templates(render(values))["api"]["spec"]["topologySpreadConstraints"] == [mine]


def _rules(objects: tuple[dict[str, Any], ...], name: str, side: str) -> list[dict[str, Any]]:
    policy = named(objects, "NetworkPolicy", name)["spec"]
    assert side.capitalize() in policy["policyTypes"]
    return policy[side]


def _ports(rule: dict[str, Any]) -> list[Any]:
    return [each["port"] for each in rule["ports"]]


def test_pods_reach_only_what_they_need():
    rules = _rules(render(), ALL, "egress")
    assert [_ports(each) for each in rules] == [[53, 53], [5432], [6379]]
    rules = _rules(render(EVERYTHING), ALL, "egress")
    assert [_ports(each) for each in rules] == [[53, 53], [5432], [6379], [8091], [443]]
    assert rules[1]["to"] == [{"podSelector": {"matchLabels": {"app": "postgres"}}}]
    assert rules[3]["ports"] == [{"port": 8091, "endPort": 8092}]


def test_only_the_ports_of_the_api_of_metrics_and_of_model_hosts_are_open():
    objects = render(EVERYTHING)
    [api] = _rules(objects, f"{ALL}-api", "ingress")
    [metrics] = _rules(objects, f"{ALL}-worker", "ingress")
    assert api == {
        "ports": [{"port": "http"}],
        "from": [{"podSelector": {"matchLabels": {"app": "proxy"}}}, *metrics["from"]],
    }
    assert metrics["ports"] == [{"port": 9100, "endPort": 9101}]
    [models] = _rules(objects, f"{ALL}-gpu", "ingress")
    [peer] = models["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "api"
    # The policy of all Pods allows nothing to come in by itself.
    assert "ingress" not in named(objects, "NetworkPolicy", ALL)["spec"]
    assert not of_kind(render("networkPolicy: {enabled: false}"), "NetworkPolicy")


@pytest.mark.parametrize("scraped", [True, False])
def test_prometheus_may_reach_the_api_only_if_it_scrapes_and_never_closes_an_open_api(scraped):
    values = {
        "monitoring": {"scrape": {"enabled": scraped, "existingSecret": "a"}},
        "networkPolicy": {
            "api": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
            "metrics": {"from": [{"podSelector": {}}]},
        },
    }
    [restricted] = _rules(render(json.dumps(values)), f"{ALL}-api", "ingress")
    assert ({"podSelector": {}} in restricted["from"]) == scraped
    del values["networkPolicy"]["api"]
    [open_api] = _rules(render(json.dumps(values)), f"{ALL}-api", "ingress")
    assert "from" not in open_api


def test_prometheus_finds_the_ports_and_has_a_key_for_the_api():
    objects = render(EVERYTHING)
    [endpoint] = named(objects, "ServiceMonitor", f"{ALL}-api")["spec"]["endpoints"]
    service = named(objects, "Service", f"{ALL}-api")["spec"]
    assert endpoint["port"] in {each["name"] for each in service["ports"]}
    assert endpoint["path"] in {route.path for route in health.router.routes}
    assert endpoint["authorization"]["credentials"] == {
        "name": "anchorage-metrics",
        "key": "api-key",
    }
    workers = named(objects, "PodMonitor", f"{ALL}-worker")["spec"]
    names = {each["name"] for each in container(templates(objects)["gpu"])["ports"]}
    assert [each["port"] for each in workers["podMetricsEndpoints"]] == ["metrics", "metrics-1"]
    assert {each["port"] for each in workers["podMetricsEndpoints"]} <= names
    jobs = {
        each["relabelings"][0]["replacement"]
        for each in [endpoint, *workers["podMetricsEndpoints"]]
    }
    assert jobs == {"anchorage-api", "anchorage-worker"}
    without = render("{monitoring: {scrape: {enabled: true}}, settings: {auth: none}}")
    assert "authorization" not in json.dumps(of_kind(without, "ServiceMonitor"))


def test_rules_and_dashboard_arrive_unchanged():
    objects = render(EVERYTHING)
    [rule] = of_kind(objects, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "monitoring" / "rules.yml").read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    [board] = of_kind(objects, "ConfigMap")
    assert json.loads(board["data"]["anchorage.json"]) == json.loads(
        (CHART / "monitoring" / "dashboard.json").read_text()
    )
    custom = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap"}
    assert not of_kind(render(), *custom)


def _notes(tmp_path: Path, values: str) -> str:
    """Return the notes. Without a cluster helm shows none, so a copy has them in an object."""
    copy = Path(shutil.copytree(CHART, tmp_path / "chart"))
    (copy / "templates" / "NOTES.txt").rename(copy / "notes.txt")
    show = '{kind: Notes, text: {{ tpl (.Files.Get "notes.txt") . | toJson }}}'
    (copy / "templates" / "notes.yaml").write_text(show)
    answer = helm(
        *("template", "rel", str(copy), "-n", "ns", "--show-only", "templates/notes.yaml"),
        values=values,
    )
    assert answer.returncode == 0, answer.stderr
    return yaml.safe_load(answer.stdout)["text"]


@pytest.mark.parametrize(("first", "command"), [("true", "kubectl logs"), ("false", "keys create")])
def test_the_notes_name_the_next_two_commands(tmp_path, first, command):
    notes = _notes(tmp_path, f"migrations: {{firstKey: {first}}}")
    assert command in notes
    assert f"kubectl port-forward -n ns service/{ALL}-api 8080:80" in notes


@pytest.mark.parametrize(
    ("values", "warns"),
    [(CASES["default"], False), (CASES["keda"], True), (EVERYTHING, False)],
    ids=["no autoscaling", "no scrape", "both"],
)
def test_the_notes_warn_of_autoscaling_without_metrics(tmp_path, values, warns):
    assert ("WARNING: worker.autoscaling needs" in _notes(tmp_path, values)) == warns


def test_the_values_on_the_page_are_accepted():
    page = (CHART.parents[2] / "docs" / "how-to" / "kubernetes.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    examples = [block for block in blocks if not block.startswith("rules:")]
    assert len(examples) == 2
    for each in examples:
        assert helm("lint", "--strict", str(CHART), values=each).returncode == 0
        render(each)


def test_the_page_of_the_chart_lists_every_value():
    def leaves(values: dict[str, Any], path: str = "") -> list[str]:
        """The names of the values. A map whose content is an example counts as one value."""
        whole = ("resources", "podSecurityContext", "containerSecurityContext", "labels")
        return [
            leaf
            for name, value in values.items()
            for leaf in (
                leaves(value, f"{path}{name}.")
                if isinstance(value, dict) and value and name not in whole
                else [f"{path}{name}"]
            )
        ]

    page = (CHART / "README.md").read_text()
    missing = [
        name
        for name in leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
        if f"`{name}`" not in page
    ]
    assert missing == []
