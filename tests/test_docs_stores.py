"""The pages on stores name what exists, and quote benchmarks/results/stores.json."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from app import errors
from app.stores import base, registry
from benchmarks.stores import report
from benchmarks.stores.clients import CLIENTS
from tests.stores.cases.all_cases import CASES
from tests.stores.cases.base import StoreCase

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "docs" / "how-to" / "add-a-connector.md"
PAGE = ROOT / "docs" / "results" / "stores.md"


def results() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks/results/stores.json").read_text())  # type: ignore[no-any-return]


def names(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def test_the_recipe_lists_the_whole_port() -> None:
    rows = [line.split("|") for line in RECIPE.read_text().splitlines() if line.startswith("| `")]
    listed = {names(row[1])[0]: set(names(row[2])) for row in rows}
    assert listed == {
        "Store": set(base.Store.__abstractmethods__),
        "Beside": set(base.Beside.__abstractmethods__),
        "Capabilities": {field.name for field in fields(base.Capabilities)},
    }


def test_the_recipe_names_files_and_errors_that_exist() -> None:
    text = RECIPE.read_text()
    paths = [name for name in names(text) if "/" in name and "KIND" not in name]
    assert len(paths) >= 8
    assert [path for path in paths if not (ROOT / path).exists()] == []
    raised = re.findall(r"`((?:Store[A-Z]|Invalid)[a-z]+[A-Za-z]*)`", text)
    known = {"StoreCase": StoreCase, "StoreFacts": base.StoreFacts}
    assert [name for name in raised if not hasattr(errors, name) and name not in known] == []
    assert hasattr(StoreCase, "id_type")


def test_every_connector_has_a_class_an_extra_a_case_and_a_client() -> None:
    extras = (ROOT / "pyproject.toml").read_text()
    for kind, (module, name, extra) in registry.CONNECTORS.items():
        assert issubclass(getattr(importlib.import_module(module), name), base.Store)
        assert f"\n{extra} = [" in extras
        assert kind in {case.kind for case in CASES}, kind
        assert kind in {client.kind for client in CLIENTS}, kind


@pytest.mark.parametrize("label", results()["stores"])
def test_the_table_is_that_of_the_results(label: str) -> None:
    assert report.page_row(results()["stores"][label]) in PAGE.read_text()


def test_no_row_changed_in_any_store() -> None:
    for result in results()["stores"].values():
        assert result["written"] == result["rows"] == results()["rows"]
        assert result["checksums_equal"]
        for part in ("rows_missing", "rows_extra", "payloads_changed", "vectors_changed"):
            assert result[part] == 0, (result["store"], part)
