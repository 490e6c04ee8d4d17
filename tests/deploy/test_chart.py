"""What the Helm chart estimates of every object, rendered by the real helm."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from app import __version__
from app.api import health
from app.main import RESOURCES
from app.settings import Settings
from tests.deploy.charts import (
    CASES,
    CHART,
    DIGEST,
    EVERYTHING,
    ROOT,
    container,
    helm,
    named,
    of_kind,
    render,
    templates,
    variables,
)

ALL = "rel-anchorage"

#: versions of Kubernetes: the oldest that Chart.yaml allows, and the newest known here
KUBERNETES = ("1.27", kubernetes_validate.latest_version())

#: kinds of the Prometheus Operator and of KEDA, whose schemas Kubernetes does not have
CUSTOM = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}

#: settings that the chart sets itself, or that may hold a password
OWN_SETTINGS = {
    *("host", "port", "data_dir", "database_url", "redis_url", "drain_s", "shutdown_s"),
    *("worker_metrics_host", "worker_metrics_port", "models_dir", "devices", "stores"),
}

#: variables of uvicorn, of the model hub and of torch
LIBRARIES = {"FORWARDED_ALLOW_IPS", "HF_HUB_OFFLINE", "OMP_NUM_THREADS"}

SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.fixture(params=CASES)
def objects(request: pytest.FixtureRequest) -> tuple[dict[str, Any], ...]:
    return render(CASES[request.param])


# Every object


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_helm_and_kubernetes_accept_every_object(values):
    answer = helm("lint", "--strict", str(CHART), values=values)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    objects = render(values)
    for each in objects:
        for version in KUBERNETES:
            if each["kind"] not in CUSTOM:
                kubernetes_validate.validate(each, version, strict=True)
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "rel"
        assert labels["app.kubernetes.io/version"] == __version__
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)
    assert "Secret" not in {kind for kind, _ in names}
    assert not re.search(r"(?i)password|postgres(ql)?://|rediss?://", json.dumps(objects))


def test_every_container_is_bounded_and_can_neither_gain_privileges_nor_write(objects):
    uid = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.M)
    for component, template in templates(objects).items():
        pod, only = template["spec"], container(template)
        assert pod["automountServiceAccountToken"] is False
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert [context["runAsUser"], context["runAsGroup"]] == [int(each) for each in uid.groups()]
        assert context["fsGroup"] == int(uid[2])
        assert only["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert only["resources"]["limits"].keys() >= {"cpu", "memory"}
        assert only["resources"]["requests"].keys() >= {"cpu", "memory"}
        mounts = {each["name"]: each for each in only["volumeMounts"]}
        assert mounts.keys() == {each["name"] for each in pod["volumes"]}
        writable = {each["mountPath"] for each in mounts.values() if not each.get("readOnly")}
        assert writable == {"/data", "/tmp"}, component  # noqa: S108


def test_probes_ask_paths_that_exist_at_ports_that_the_container_has(objects):
    routes = {route.path for resource in RESOURCES for route in resource.router.routes}
    for component, template in templates(objects).items():
        only, env = container(template), variables(template)
        if component == "migrate":
            continue
        ports = {each["name"]: each["containerPort"] for each in only["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            ask = only[probe]["httpGet"]
            if component == "api":
                assert ask["path"] in routes
                assert ports[ask["port"]] == int(env["ANCHORAGE_PORT"])
            else:
                assert ask == {"path": "/metrics", "port": "metrics"}
                assert ports["metrics"] == int(env["ANCHORAGE_WORKER_METRICS_PORT"])
                assert env["ANCHORAGE_WORKER_METRICS_HOST"] == "0.0.0.0"  # noqa: S104


def test_readiness_waits_for_the_answer_of_readyz_and_a_drain_lasts_two_probes():
    template = templates(render())["api"]
    probe, env = container(template)["readinessProbe"], variables(template)
    assert probe["httpGet"]["path"] == "/readyz"
    assert probe["timeoutSeconds"] > health.PROBE_ANSWER_S
    assert int(env["ANCHORAGE_DRAIN_S"]) >= 2 * probe["periodSeconds"]
    stop_s = int(env["ANCHORAGE_DRAIN_S"]) + int(env["ANCHORAGE_SHUTDOWN_S"])
    assert template["spec"]["terminationGracePeriodSeconds"] > stop_s


def test_selectors_match_the_pods_of_one_component_only(objects):
    pods = {name: each["metadata"]["labels"] for name, each in templates(objects).items()}

    def matched(selector: dict[str, Any]) -> set[str]:
        wanted = selector.get("matchLabels", selector)
        also = selector.get("matchExpressions", [])
        return {
            name
            for name, labels in pods.items()
            if wanted.items() <= labels.items()
            and all(labels[each["key"]] in each["values"] for each in also)
        }

    for each in of_kind(objects, "Deployment", "PodDisruptionBudget", "Service"):
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        assert matched(each["spec"]["selector"]) == {component}, each["metadata"]["name"]
    for each in of_kind(objects, "NetworkPolicy"):
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        expected = {"network": set(pods), "worker": {"worker", "gpu"} & set(pods)}
        assert matched(each["spec"]["podSelector"]) == expected.get(component, {component})


def test_variables_are_settings_that_the_service_accepts_and_secrets_are_only_named(
    objects, tmp_path
):
    ours = {f"ANCHORAGE_{name.upper()}" for name in Settings.model_fields}
    for template in templates(objects).values():
        env = variables(template)
        assert env.keys() <= ours | LIBRARIES
        plain = {
            name.removeprefix("ANCHORAGE_").lower(): value
            for name, value in env.items()
            if name.startswith("ANCHORAGE_") and isinstance(value, str)
        }
        Settings(data_dir=tmp_path, **plain)
        for name in ("database-url", "redis-url"):
            source = env[f"ANCHORAGE_{name.replace('-', '_').upper()}"]
            assert source == {"secretKeyRef": {"name": "anchorage", "key": name}}


# Values


def test_the_schema_knows_each_value_and_the_page_lists_it():
    known = SCHEMA["definitions"]["settings"]["propertyNames"]["enum"]
    assert set(known) == Settings.model_fields.keys() - OWN_SETTINGS
    whole = ("resources", "podSecurityContext", "containerSecurityContext", "labels")
    page = (CHART / "README.md").read_text()

    def check(values: dict[str, Any], schema: dict[str, Any], path: str, leaf: bool) -> None:
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        strict = schema.get("additionalProperties") is False
        for name, value in values.items():
            if strict:
                assert name in schema["properties"], f"{path}{name}"
            inner = isinstance(value, dict) and value
            below = leaf and inner and name not in whole
            assert below or not leaf or f"`{path}{name}`" in page, f"{path}{name}"
            if inner:
                properties = schema.get("properties", {})
                check(value, properties.get(name, {}), f"{path}{name}.", bool(below))

    check(yaml.safe_load((CHART / "values.yaml").read_text()), SCHEMA, "", True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{settings: {max_vector: 3}}", "max_vector"),
        ("{settings: {database_url: x}}", "database_url"),
        ("{database: {password: x}}", "password"),
        ('{image: {repository: ""}}', "image.repository is empty: build the image"),
        ("{image: {digest: latest}}", "digest"),
        ("{fullnameOverride: My_release}", "fullnameOverride"),
        ("{worker: {autoscaling: {enabled: true, kind: keda}}}", "needs the address of Prometheus"),
        ("{worker: {autoscaling: {enabled: true, minReplicas: 0}}}", "must be at least 1"),
        ("{api: {autoscaling: {enabled: true, minReplicas: 9}}}", "is above maxReplicas"),
        ("{api: {ingress: {enabled: true}}}", "api.ingress.hosts"),
        ("{api: {resources: {limits: {memory: null}}}}", "memory"),
        ("{monitoring: {scrape: {enabled: true}}}", "scrape.existingSecret is empty"),
        ("{extraEnv: [{name: ANCHORAGE_DATABASE_URL, value: x}]}", "name ANCHORAGE_DATABASE_URL"),
        ("{extraVolumes: [{name: data, emptyDir: {}}]}", "extraVolumes"),
        (f"{{gpuWorker: {{enabled: true}}, image: {{digest: {DIGEST}}}}}", "gpuWorker.image needs"),
    ],
)
def test_values_that_make_no_sense_are_refused(values, message):
    answer = helm("template", "a", str(CHART), values=values)
    assert answer.returncode != 0
    assert message in answer.stderr


def test_the_image_is_of_this_version_and_a_digest_wins_over_a_tag():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__

    def images(values: str, *options: str) -> dict[str, str]:
        found = templates(render(values, *options))
        return {name: container(each)["image"] for name, each in found.items()}

    assert set(images(EVERYTHING).values()) == {f"registry.example/anchorage@{DIGEST}"}
    newer = images("gpuWorker: {enabled: true}", "--set", "image.tag=9.0.0")
    assert newer == {
        **dict.fromkeys(("api", "worker", "migrate"), "anchorage:9.0.0"),
        "gpu": "anchorage:9.0.0-cuda",
    }
    assert set(images("").values()) == {f"anchorage:{__version__}"}


def test_settings_and_variables_of_a_component_win_and_large_numbers_stay_numbers(tmp_path):
    found = {name: variables(each) for name, each in templates(render(EVERYTHING)).items()}
    assert found["api"]["ANCHORAGE_MAX_VECTORS"] == "128"
    assert found["worker"]["ANCHORAGE_MAX_VECTORS"] == "4096"
    assert found["api"]["ANCHORAGE_MODEL_BYTES"] == "4294967296"
    assert found["api"]["HF_HUB_OFFLINE"] == "0"
    for component in ("api", "worker", "gpu"):
        threads = {"resourceFieldRef": {"resource": "limits.cpu"}}
        assert found[component]["OMP_NUM_THREADS"] == threads
    both = "{extraEnv: [{name: A, value: all}], worker: {extraEnv: [{name: A, value: mine}]}}"
    assert [variables(templates(render(both))[each])["A"] for each in ("api", "worker")] == [
        "all",
        "mine",
    ]
    for component, template in templates(render()).items():  # memory for models and caches
        env = variables(template)
        if component != "migrate":
            settings = Settings(data_dir=tmp_path, model_bytes=env["ANCHORAGE_MODEL_BYTES"])
            limit = container(template)["resources"]["limits"]["memory"]
            held = settings.model_bytes + settings.cache_bytes
            assert int(limit.removesuffix("Gi")) * 2**30 - held >= 2**30


# Parts


def test_the_migration_runs_before_everything_else_and_needs_nothing_of_the_chart():
    job = named(render(EVERYTHING), "Job", f"{ALL}-migrate")
    template = job["spec"]["template"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    volumes = template["spec"]["volumes"]
    assert not any("persistentVolumeClaim" in each for each in volumes)  # it does not exist yet
    assert container(template)["args"] == ["db", "upgrade"]
    assert template["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
    assert template["spec"]["nodeSelector"] == {"kind": "cpu"}
    told = render("{migrations: {firstKey: true}}")
    assert container(templates(told)["migrate"])["args"] == ["db", "upgrade", "--first-key"]


def test_all_pods_share_the_volume_of_the_blobs_which_outlives_the_release():
    objects = render(EVERYTHING)
    [claim] = of_kind(objects, "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    for component, template in templates(objects).items():
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        assert volumes["ca"] == {"name": "ca", "secret": {"secretName": "private-ca"}}
        if component != "migrate":
            name = volumes["data"]["persistentVolumeClaim"]["claimName"]
            assert name == claim["metadata"]["name"]
    mine = render(CASES["existing claim"])
    assert not of_kind(mine, "PersistentVolumeClaim", "Job")
    assert "'mine'" in str(templates(mine)["worker"]["spec"]["volumes"])


def test_gpu_pods_ask_for_gpus_and_run_where_they_are():
    template = templates(render(EVERYTHING))["gpu"]
    pod, only = template["spec"], container(template)
    assert only["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert (pod["runtimeClassName"], pod["nodeSelector"]) == ("nvidia", {"gpu": "h100"})
    ports = {each["name"]: each["containerPort"] for each in only["ports"]}
    assert ports == {"metrics": 9100, "metrics-1": 9101}  # one for each GPU
    assert variables(templates(render())["worker"])["ANCHORAGE_DEVICES"] == "cpu"


def test_the_api_scales_by_cpu_and_prefers_different_nodes():
    objects = render(EVERYTHING)
    for name in ("api", "worker"):
        scaled = named(objects, "HorizontalPodAutoscaler", f"{ALL}-{name}")["spec"]
        assert scaled["scaleTargetRef"]["name"] == f"{ALL}-{name}"
        assert "replicas" not in named(objects, "Deployment", f"{ALL}-{name}")["spec"]
    plain = render()
    assert not of_kind(plain, "HorizontalPodAutoscaler", "ScaledObject")
    assert named(plain, "Deployment", f"{ALL}-api")["spec"]["replicas"] == 2
    [spread] = templates(plain)["api"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    mine = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    values = json.dumps({"api": {"topologySpreadConstraints": [mine]}})
    assert templates(render(values))["api"]["spec"]["topologySpreadConstraints"] == [mine]


def _policy(objects: tuple[dict[str, Any], ...], name: str) -> dict[str, Any]:
    return named(objects, "NetworkPolicy", name)["spec"]


def test_pods_reach_only_what_they_need_and_only_the_ports_of_the_api_and_of_metrics_are_open():
    objects = render(EVERYTHING)
    egress = _policy(objects, ALL)["egress"]
    ports = [[each["port"] for each in rule["ports"]] for rule in egress]
    assert ports == [[53, 53], [5432], [6379], [443]]
    assert egress[1]["to"] == [{"podSelector": {"matchLabels": {"app": "postgres"}}}]
    assert "ingress" not in _policy(objects, ALL)  # nothing comes in by itself
    [metrics] = _policy(objects, f"{ALL}-worker")["ingress"]
    assert metrics["ports"] == [{"port": 9100, "endPort": 9101}]
    proxy = {"podSelector": {"matchLabels": {"app": "proxy"}}}
    [api] = _policy(objects, f"{ALL}-api")["ingress"]
    assert api == {"ports": [{"port": "http"}], "from": [proxy, *metrics["from"]]}
    # Without a scrape Prometheus does not reach the API; a scrape never closes an open API.
    closed = {"networkPolicy": {"api": {"from": [proxy]}, "metrics": {"from": [{}]}}}
    [api] = _policy(render(json.dumps(closed)), f"{ALL}-api")["ingress"]
    assert api["from"] == [proxy]
    [api] = _policy(render(CASES["scraped"]), f"{ALL}-api")["ingress"]
    assert "from" not in api
    assert not of_kind(render("networkPolicy: {enabled: false}"), "NetworkPolicy")


def test_prometheus_finds_the_ports_has_a_key_for_the_api_and_gets_rules_and_dashboard():
    objects = render(EVERYTHING)
    [endpoint] = named(objects, "ServiceMonitor", f"{ALL}-api")["spec"]["endpoints"]
    service = named(objects, "Service", f"{ALL}-api")["spec"]
    assert endpoint["port"] in {each["name"] for each in service["ports"]}
    assert endpoint["path"] in {route.path for route in health.router.routes}
    key = {"name": "anchorage-metrics", "key": "api-key"}
    assert endpoint["authorization"]["credentials"] == key
    workers = named(objects, "PodMonitor", f"{ALL}-worker")["spec"]["podMetricsEndpoints"]
    assert [each["port"] for each in workers] == ["metrics", "metrics-1"]
    jobs = [each["relabelings"][0]["replacement"] for each in (endpoint, *workers)]
    assert jobs == ["anchorage-api", "anchorage-worker", "anchorage-worker"]
    assert "authorization" not in json.dumps(of_kind(render(CASES["scraped"]), "ServiceMonitor"))
    [rule], [board] = of_kind(objects, "PrometheusRule"), of_kind(objects, "ConfigMap")
    assert rule["spec"] == yaml.safe_load((CHART / "monitoring" / "rules.yml").read_text())
    dashboard = (CHART / "monitoring" / "dashboard.json").read_text()
    assert json.loads(board["data"]["anchorage.json"]) == json.loads(dashboard)
    assert not of_kind(render(), "ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap")


@pytest.mark.parametrize(
    ("values", "command", "warns"),
    [
        (EVERYTHING, f"deploy/{ALL}-worker -- anchorage keys create", False),
        ("migrations: {firstKey: true}", "kubectl logs", False),
        (CASES["keda"], "keys create", True),
    ],
    ids=["everything", "first key", "autoscaling without metrics"],
)
def test_the_notes_name_the_next_commands_and_warn(tmp_path, values, command, warns):
    """Without a cluster helm shows no notes, so a copy of the chart has them in an object."""
    copy = Path(shutil.copytree(CHART, tmp_path / "chart"))
    (copy / "templates" / "NOTES.txt").rename(copy / "notes.txt")
    show = '{kind: Notes, text: {{ tpl (.Files.Get "notes.txt") . | toJson }}}'
    (copy / "templates" / "notes.yaml").write_text(show)
    options = ("--show-only", "templates/notes.yaml")
    answer = helm("template", "rel", str(copy), "-n", "ns", *options, values=values)
    notes = yaml.safe_load(answer.stdout)["text"]
    assert command in notes
    assert f"kubectl port-forward -n ns service/{ALL}-api 8080:80" in notes
    assert ("WARNING: worker.autoscaling needs" in notes) == warns


def test_the_values_on_the_page_are_accepted():
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    examples = [block for block in blocks if not block.startswith("rules:")]
    assert examples
    for each in examples:
        render(each)
