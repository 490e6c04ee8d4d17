"""A room has tests in a folder of its name, and no noun uses the schemas of another."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [path for top in ("app", "workers") for path in sorted((ROOT / top).rglob("*.py"))]
#: rooms below the nouns, whose schemas every noun may answer
SHARED = {"http", "jobs"}
#: entry points, which are no nouns
ENTRIES = {"main.py", "console"}


def test_every_room_has_tests_in_a_folder_of_the_same_name() -> None:
    untested = []
    for folder in sorted({path.parent.relative_to(ROOT) for path in SOURCES}):
        place = folder.relative_to("app") if folder.parts[0] == "app" else folder
        if not list((ROOT / "tests" / place).rglob("test_*.py")):
            untested.append(str(folder))
    assert untested == []


def test_no_noun_imports_the_endpoints_or_schemas_of_another() -> None:
    wrong = []
    for path in SOURCES:
        room = path.relative_to(ROOT).parts[1]
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("app."):
                continue
            for name in [node.module, *(f"{node.module}.{each.name}" for each in node.names)]:
                parts = (name or "").split(".")
                if (
                    len(parts) == 3
                    and parts[2].endswith(("endpoints", "schemas"))
                    and parts[1] not in {room, *SHARED}
                    and room not in ENTRIES
                ):
                    wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert sorted(set(wrong)) == []
