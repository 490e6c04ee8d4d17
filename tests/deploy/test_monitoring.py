"""Alerts and the dashboard: promtool reads every query, and the dashboard shows every metric."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram

from app.ops import metrics

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
RULES = MONITORING / "rules.yml"
CASES_FILE = Path(__file__).with_name("rules_test.yml")
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}
BOARD = json.loads((MONITORING / "dashboard.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]

#: families that the API reads from the database
OF_THE_DATABASE = {"encoders_checked", "jobs", "queue_oldest_seconds"}


def expressions() -> list[str]:
    """The queries of the dashboard, with what Grafana puts in."""
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return [each.replace("$__rate_interval", "1m").replace("$namespace", ".*") for each in found]


def promtool(*arguments: str) -> str:
    """Run promtool; skips without it."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool: apt-get install prometheus")
    answer = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def test_the_rules_are_valid_and_each_alert_fires_when_it_should_and_only_then():
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert f"{len(ALERTS)} rules found" in checked
    promtool("test", "rules", str(CASES_FILE))
    fired = {
        re.search(r'alertname="(\w+)"', sample["labels"])[1]
        for case in yaml.safe_load(CASES_FILE.read_text())["tests"]
        for check in case["promql_expr_test"]
        for sample in check["exp_samples"]
    }
    assert fired == ALERTS.keys()


def test_every_alert_says_what_it_means_and_what_to_do():
    for rule in ALERTS.values():
        assert rule["labels"].keys() == {"severity"}
        assert rule["annotations"].keys() == {"summary", "description", "action", "runbook"}
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
        assert anchor in {
            re.sub(r"[^\w\s-]", "", each).lower().replace(" ", "-") for each in headings
        }


def test_the_dashboard_asks_valid_queries_and_shows_every_metric(tmp_path):
    rules = [{"record": f"q{n}", "expr": each} for n, each in enumerate(expressions())]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "a", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "rules.yml"))
    ours = {
        family.name + ("_total" if family.type == "counter" else "")
        for each in vars(metrics).values()
        if isinstance(each, Counter | Gauge | Histogram)
        for family in each.describe()
    } | {f"anchorage_{name}" for name in OF_THE_DATABASE}
    names = re.findall(r"\b(?:anchorage|process)_\w+(?=[{\[) ]|$)", "\n".join(expressions()), re.M)
    assert ours <= {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
