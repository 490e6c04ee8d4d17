"""The recipe for connectors names what exists."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields
from pathlib import Path

from app.stores import port as base
from app.stores import registry
from app.stores.paired_store import PairedStore
from tests.stores.cases.all_cases import CASES

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
RECIPE = GUIDE.partition("\n## Add a connector")[2].partition("\n## ")[0]


def names(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def test_the_recipe_lists_the_whole_port() -> None:
    rows = [line.split("|") for line in RECIPE.splitlines() if line.startswith("| `")]
    port = [row for row in rows if names(row[1])[0][0].isupper()]
    listed = {names(row[1])[0]: set(names(row[2])) for row in port}
    verbs = {names(row[1])[0] for row in rows if row not in port}
    assert verbs | {"migration"} == PairedStore.__abstractmethods__
    assert listed == {
        "Store": set(base.Store.__abstractmethods__),
        "NewVectors": set(base.NewVectors.__abstractmethods__),
        "Migration": set(base.Migration.__abstractmethods__) - base.NewVectors.__abstractmethods__
        | {"NewVectors"},
        "Capabilities": {field.name for field in fields(base.Capabilities)},
    }


def test_every_connector_has_a_class_an_extra_and_a_case() -> None:
    extras = (ROOT / "pyproject.toml").read_text()
    for kind, (module, name, extra) in registry.CONNECTORS.items():
        assert issubclass(getattr(importlib.import_module(module), name), base.Store)
        assert f"\n{extra} = [" in extras
        assert kind in {case.kind for case in CASES}, kind
