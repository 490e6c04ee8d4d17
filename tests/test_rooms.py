"""The layout of the code: small files and folders, unique names, and tests in the same tree."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [path for top in ("app", "workers") for path in sorted((ROOT / top).rglob("*.py"))]
FOLDERS = sorted({path.parent for path in SOURCES})
CLIENT = sorted((ROOT / "clients/python/anchorage_client").rglob("*.py"))

#: names that several classes may have, each with the reason
SHARED_NAMES: dict[str, str] = {}


def test_no_file_is_longer_than_400_lines() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in SOURCES + CLIENT}
    assert {path: count for path, count in lines.items() if count > 400} == {}


def test_no_folder_has_more_than_16_modules() -> None:
    modules = {
        str(folder.relative_to(ROOT)): len(
            [path for path in folder.glob("*.py") if not path.name.startswith("__")]
        )
        for folder in FOLDERS
    }
    assert {folder: count for folder, count in modules.items() if count > 16} == {}


def test_a_class_name_leads_to_one_place() -> None:
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {
        name: where for name, where in places.items() if len(where) > 1 and name not in SHARED_NAMES
    } == {}


def test_a_constant_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            for target in targets:
                if isinstance(target, ast.Name) and target.id.isupper():
                    places[target.id].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_room_has_tests_in_a_folder_of_the_same_name(folder: Path) -> None:
    relative = folder.relative_to(ROOT)
    tests = (
        ROOT / "tests" / (relative.relative_to("app") if relative.parts[0] == "app" else relative)
    )
    assert list(tests.rglob("test_*.py")), f"{relative} has no tests in {tests.relative_to(ROOT)}"
