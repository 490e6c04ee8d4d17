"""The commands, variables and probes of the chart, with real processes."""

from __future__ import annotations

import httpx2
import pytest

from tests.deploy.charts import container, render, templates
from tests.deploy.conftest import Pods
from tests.waiting import until


@pytest.mark.parametrize("component", ["api", "worker"])
@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_what_the_chart_starts_answers_its_probes(pods: Pods, component: str, probe: str) -> None:
    path = container(templates(render())[component])[probe]["httpGet"]["path"]

    def answers() -> bool:
        try:
            return pods.get(component, path).status_code == 200
        except httpx2.TransportError:
            return False

    until(answers, 120, every_s=0.2)


def test_the_first_key_works_and_metrics_need_one(pods: Pods) -> None:
    until(lambda: _answers(pods), 120, every_s=0.2)
    assert pods.get("api", "/metrics").status_code == 401
    answer = httpx2.get(
        f"http://127.0.0.1:{pods.api_port}/encoders",
        headers={"Authorization": f"Bearer {pods.key}"},
        trust_env=False,
    )
    assert answer.status_code == 200


def _answers(pods: Pods) -> bool:
    try:
        return pods.get("api", "/livez").status_code == 200
    except httpx2.TransportError:
        return False
