"""What the Helm chart promises of every object, rendered by the real helm."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
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

#: versions of Kubernetes: the oldest that Chart.yaml allows, and the newest known here
KUBERNETES = ("1.27", kubernetes_validate.latest_version())

#: kinds of the Prometheus Operator and of KEDA, whose schemas Kubernetes does not have
CUSTOM = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}

#: settings that the chart sets itself, or that may hold a password
OWN_SETTINGS = {
    *("host", "port", "data_dir", "database_url", "redis_url", "drain_s", "shutdown_s"),
    *("encode_at", "encode_listen", "encode_key", "worker_metrics_host", "worker_metrics_port"),
    *("models_dir", "devices", "stores"),
}

#: variables of uvicorn, of the model hub and of torch
LIBRARIES = {"FORWARDED_ALLOW_IPS", "HF_HUB_OFFLINE", "OMP_NUM_THREADS"}

SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.fixture(params=CASES)
def objects(request: pytest.FixtureRequest) -> tuple[dict[str, Any], ...]:
    return render(CASES[request.param])


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_helm_finds_nothing_to_complain_about(values):
    answer = helm("lint", "--strict", str(CHART), values=values)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_accepts_every_object(objects, version):
    for each in objects:
        if each["kind"] not in CUSTOM:
            kubernetes_validate.validate(each, version, strict=True)


def test_a_wrong_field_is_found_by_the_check_above():
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"prts": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[0], strict=True)


def test_names_are_unique_and_every_object_says_whose_it_is(objects):
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)
    for each in objects:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "rel"
        assert labels["app.kubernetes.io/version"] == __version__


def test_the_chart_is_that_of_this_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__


def test_every_container_is_bounded_and_can_neither_gain_privileges_nor_write(objects):
    for component, template in templates(objects).items():
        pod, only = template["spec"], container(template)
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
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


def test_the_user_is_that_of_the_image(objects):
    uid = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.M)
    for template in templates(objects).values():
        context = template["spec"]["securityContext"]
        assert [context["runAsUser"], context["runAsGroup"]] == [int(each) for each in uid.groups()]
        assert context["fsGroup"] == int(uid[2])


def test_probes_ask_paths_that_exist_at_ports_that_the_container_has(objects):
    routes = {route.path for resource in RESOURCES for route in resource.router.routes}
    for component, template in templates(objects).items():
        only = container(template)
        if component == "migrate":
            continue
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            ask = only[probe]["httpGet"]
            ports = {each["name"]: each["containerPort"] for each in only["ports"]}
            env = variables(template)
            if component == "api":
                assert ask["path"] in routes
                assert ports[ask["port"]] == int(env["ANCHORAGE_PORT"])
            else:
                assert ask == {"path": "/metrics", "port": "metrics"}
                assert ports["metrics"] == int(env["ANCHORAGE_WORKER_METRICS_PORT"])
                assert env["ANCHORAGE_WORKER_METRICS_HOST"] == "0.0.0.0"  # noqa: S104


def test_readiness_waits_for_the_answer_of_readyz_and_a_drain_lasts_two_probes():
    template = templates(render())["api"]
    probe = container(template)["readinessProbe"]
    assert probe["httpGet"]["path"] == "/readyz"
    assert probe["timeoutSeconds"] > health.PROBE_ANSWER_S
    env = variables(template)
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

    for each in of_kind(objects, "Deployment", "StatefulSet", "PodDisruptionBudget", "Service"):
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        assert matched(each["spec"]["selector"]) == {component}, each["metadata"]["name"]
    for each in of_kind(objects, "NetworkPolicy"):
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        expected = {"network": set(pods), "worker": {"worker", "gpu"} & set(pods)}
        assert matched(each["spec"]["podSelector"]) == expected.get(component, {component})


def test_every_variable_is_a_setting_or_of_a_library(objects):
    ours = {f"ANCHORAGE_{name.upper()}" for name in Settings.model_fields}
    for template in templates(objects).values():
        assert variables(template).keys() <= ours | LIBRARIES


def test_the_plain_values_are_settings_that_the_service_accepts(objects, tmp_path):
    for template in templates(objects).values():
        plain = {
            name.removeprefix("ANCHORAGE_").lower(): value
            for name, value in variables(template).items()
            if name.startswith("ANCHORAGE_") and isinstance(value, str)
        }
        Settings(data_dir=tmp_path, **plain)


def test_secrets_are_only_named(objects):
    kinds = {each["kind"] for each in objects}
    assert "Secret" not in kinds
    for component, template in templates(objects).items():
        env = variables(template)
        wanted = {"ANCHORAGE_DATABASE_URL": "database-url", "ANCHORAGE_REDIS_URL": "redis-url"}
        if component == "gpu" or "ANCHORAGE_ENCODE_AT" in env:
            wanted["ANCHORAGE_ENCODE_KEY"] = "encode-key"
        for name, key in wanted.items():
            assert env[name] == {"secretKeyRef": {"name": "anchorage", "key": key}}
    assert not re.search(r"(?i)password|postgres(ql)?://|rediss?://", json.dumps(objects))


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_the_schema_knows_each_setting_except_those_of_the_chart_and_of_secrets(name):
    known = SCHEMA["definitions"]["settings"]["propertyNames"]["enum"]
    assert (name in known) == (name not in OWN_SETTINGS)
    value = {"str": "x", "int": 4, "float": 1.5}.get(
        str(Settings.model_fields[name].annotation), "x"
    )
    answer = helm("template", "a", str(CHART), values=json.dumps({"settings": {name: value}}))
    assert (answer.returncode == 0) == (name in known), answer.stderr


def test_every_value_of_the_defaults_is_in_the_schema():
    """Without this, a forgotten name would only be found by a user who sets it."""

    def unknown(values: dict[str, Any], schema: dict[str, Any], path: str) -> list[str]:
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        if schema.get("additionalProperties") is not False:
            return []
        return [
            found
            for name, value in values.items()
            for found in (
                [f"{path}{name}"]
                if name not in schema["properties"]
                else unknown(value, schema["properties"][name], f"{path}{name}.")
                if isinstance(value, dict)
                else []
            )
        ]

    assert unknown(yaml.safe_load((CHART / "values.yaml").read_text()), SCHEMA, "") == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{api: {replica: 3}}", "replica"),
        ("{settings: {max_vector: 3}}", "max_vector"),
        ("{settings: {database_url: x}}", "database_url"),
        ("{database: {password: x}}", "password"),
        ("{image: {digest: latest}}", "digest"),
        ("{database: {existingSecret: ''}}", "existingSecret"),
        ("{api: {replicas: two}}", "replicas"),
        ("{worker: {autoscaling: {kind: magic}}}", "kind"),
        ("{worker: {autoscaling: {enabled: true, kind: keda}}}", "needs the address of Prometheus"),
        ("{api: {ingress: {enabled: true}}}", "api.ingress.hosts"),
        ("{api: {resources: {limits: {memory: null}}}}", "memory"),
        ("{monitoring: {scrape: {enabled: true}}}", "scrape.existingSecret is empty"),
        ("{extraEnv: [{name: ANCHORAGE_DATABASE_URL, value: x}]}", "name ANCHORAGE_DATABASE_URL"),
        ("{extraEnv: [{name: ANCHORAGE_DEVICES, value: x}]}", "name ANCHORAGE_DEVICES"),
        ("{api: {extraEnv: [{name: ANCHORAGE_PORT, value: x}]}}", "name ANCHORAGE_PORT"),
        (
            "{settings: {threads: 2}, worker: {extraEnv: [{name: ANCHORAGE_THREADS, value: x}]}}",
            "name ANCHORAGE_THREADS",
        ),
        ("{extraVolumes: [{name: data, emptyDir: {}}]}", "extraVolumes"),
        (f"{{gpuWorker: {{enabled: true}}, image: {{digest: {DIGEST}}}}}", "gpuWorker.image needs"),
    ],
)
def test_values_that_make_no_sense_are_refused(values, message):
    answer = helm("template", "a", str(CHART), values=values)
    assert answer.returncode != 0
    assert message in answer.stderr


def test_a_digest_wins_over_a_tag():
    images = {
        name: container(each)["image"] for name, each in templates(render(EVERYTHING)).items()
    }
    assert set(images) == {"api", "worker", "gpu", "migrate"}
    assert set(images.values()) == {f"registry.example/anchorage@{DIGEST}"}
    plain = {name: container(each)["image"] for name, each in templates(render()).items()}
    assert set(plain.values()) == {f"anchorage:{__version__}"}
    gpu = templates(render(CASES["gpu"]))["gpu"]
    assert container(gpu)["image"] == f"anchorage:{__version__}-cuda"
    newer = templates(render(CASES["gpu"], "--set", "image.tag=9.0.0"))
    assert {name: container(each)["image"] for name, each in newer.items()} == {
        **dict.fromkeys(("api", "worker", "migrate"), "anchorage:9.0.0"),
        "gpu": "anchorage:9.0.0-cuda",
    }


def test_settings_of_a_component_win_and_large_numbers_stay_numbers():
    found = {name: variables(each) for name, each in templates(render(EVERYTHING)).items()}
    assert found["api"]["ANCHORAGE_MAX_VECTORS"] == "128"
    assert found["worker"]["ANCHORAGE_MAX_VECTORS"] == "4096"
    assert found["api"]["ANCHORAGE_MODEL_BYTES"] == "4294967296"
    assert found["api"]["ANCHORAGE_LEASE_S"] == "12.5"
    assert found["api"]["HF_HUB_OFFLINE"] == "0"
    assert "HF_HUB_OFFLINE" not in variables(templates(render())["api"])
    assert found["worker"]["ANCHORAGE_THREADS"] == "2"


@pytest.mark.parametrize("component", ["api", "worker", "gpu"])
def test_a_process_unloads_models_before_its_pod_runs_out_of_memory(component, tmp_path):
    template = templates(render(CASES["gpu"]))[component]
    env = variables(template)
    set_here = {
        name: env[f"ANCHORAGE_{name.upper()}"]
        for name in ("model_bytes", "cache_bytes")
        if f"ANCHORAGE_{name.upper()}" in env
    }
    settings = Settings(data_dir=tmp_path, **set_here)
    limit = container(template)["resources"]["limits"]["memory"]
    free = int(limit.removesuffix("Gi")) * 2**30 - settings.model_bytes - settings.cache_bytes
    assert free >= 2**30


@pytest.mark.parametrize("values", ["{settings: SET}", "{api: {settings: SET}}"])
def test_a_users_memory_for_models_wins_over_that_of_the_chart(values):
    mine = render(values.replace("SET", "{model_bytes: 1073741824}"))
    assert variables(templates(mine)["api"])["ANCHORAGE_MODEL_BYTES"] == "1073741824"


def test_torch_has_as_many_threads_as_the_container_may_use_cores():
    for component in ("api", "worker", "gpu"):
        env = variables(templates(render(EVERYTHING))[component])
        assert env["OMP_NUM_THREADS"] == {"resourceFieldRef": {"resource": "limits.cpu"}}
    program = "import torch; print(torch.get_num_threads())"
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "1\n"


def test_the_migration_runs_before_everything_else_and_needs_nothing_of_the_chart():
    job = named(render(EVERYTHING), "Job", "rel-anchorage-migrate")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    volumes = job["spec"]["template"]["spec"]["volumes"]
    assert not any("persistentVolumeClaim" in each for each in volumes)  # it does not exist yet
    assert container(job["spec"]["template"])["args"] == ["db", "upgrade", "--first-key"]
    without = render("{migrations: {firstKey: false}}")
    assert container(templates(without)["migrate"])["args"] == ["db", "upgrade"]


def test_the_migration_can_be_placed_and_labelled():
    template = templates(render(EVERYTHING))["migrate"]
    assert template["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
    assert template["metadata"]["annotations"] == {"note": "migrate"}
    assert template["spec"]["nodeSelector"] == {"kind": "cpu"}
    assert template["spec"]["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
    assert template["spec"]["affinity"] == {"podAntiAffinity": {}}


def test_every_pod_has_the_extra_volumes():
    found = templates(render(EVERYTHING))
    assert set(found) == {"api", "worker", "gpu", "migrate"}
    for template in found.values():
        assert {"name": "ca", "secret": {"secretName": "private-ca"}} in template["spec"]["volumes"]
        mount = {"name": "ca", "mountPath": "/etc/private-ca", "readOnly": True}
        assert mount in container(template)["volumeMounts"]


@pytest.mark.parametrize(
    ("value", "component"), [("api", "api"), ("worker", "worker"), ("gpuWorker", "gpu")]
)
def test_variables_of_a_component_win_over_those_of_every_process(value, component):
    values = {
        "gpuWorker": {"enabled": True},
        "extraEnv": [{"name": "A", "value": "all"}, {"name": "B", "value": "all"}],
    }
    mine = values.setdefault(value, {})
    mine["extraEnv"] = [{"name": "A", "value": "mine"}, {"name": "C", "value": "mine"}]
    for name, template in templates(render(json.dumps(values))).items():
        env = variables(template)
        expected = ["mine", "all", "mine"] if name == component else ["all", "all", None]
        assert [env.get(each) for each in "ABC"] == expected


def test_all_pods_share_the_volume_of_the_blobs_which_outlives_the_release():
    objects = render(EVERYTHING)
    [claim] = of_kind(objects, "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for component, template in templates(objects).items():
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        if component != "migrate":
            name = volumes["data"]["persistentVolumeClaim"]["claimName"]
            assert name == claim["metadata"]["name"]
    mine = render(CASES["existing claim"])
    assert not of_kind(mine, "PersistentVolumeClaim", "Job")
    assert "'mine'" in str(templates(mine)["worker"]["spec"]["volumes"])
