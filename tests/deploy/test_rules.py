"""The alert rules, with promtool and in a real Prometheus that scrapes a real service."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.charts import CHART, ROOT
from tests.deploy.conftest import Prometheus, program
from tests.waiting import until

RULES = CHART / "monitoring" / "rules.yml"
CASES_FILE = Path(__file__).with_name("rules_test.yml")
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}


def test_promtool_accepts_the_rules():
    answer = subprocess.run(
        [program("promtool"), "check", "rules", "--lint=all", "--lint-fatal", str(RULES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"{len(ALERTS)} rules found" in answer.stdout


def test_each_alert_fires_when_it_should_and_only_then():
    answer = subprocess.run(
        [program("promtool"), "test", "rules", str(CASES_FILE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_every_alert_has_a_case_in_which_it_fires():
    cases = yaml.safe_load(CASES_FILE.read_text())["tests"]
    fired = {
        re.search(r'alertname="(\w+)"', sample["labels"])[1]
        for case in cases
        for check in case["promql_expr_test"]
        for sample in check["exp_samples"]
    }
    assert fired == ALERTS.keys()


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_says_what_it_means_and_what_to_do(name):
    rule = ALERTS[name]
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "description", "action", "runbook"}
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {
        re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def test_the_page_lists_every_alert():
    page = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
    listed = dict(re.findall(r"^\| `(Anchorage\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert listed == {name: rule["labels"]["severity"] for name, rule in ALERTS.items()}


@pytest.mark.timeout(300)
def test_prometheus_loads_every_rule_and_nothing_fires_in_a_healthy_service(
    prometheus: Prometheus,
) -> None:
    def evaluated() -> bool:
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        assert {rule["name"] for rule in rules} == ALERTS.keys()
        assert not [rule for rule in rules if rule["health"] == "err"], rules
        return all(rule["health"] == "ok" for rule in rules)

    until(evaluated, 60, every_s=0.5)
    assert prometheus.ask("alerts")["alerts"] == []
