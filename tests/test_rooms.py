"""The layout of the code: files of one subject, and tests in the same tree."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [path for top in ("app", "workers") for path in sorted((ROOT / top).rglob("*.py"))]
CLIENT = sorted((ROOT / "clients/python/anchorage_client").rglob("*.py"))


def test_no_file_is_much_longer_than_600_lines() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in SOURCES + CLIENT}
    assert {path: count for path, count in lines.items() if count > 650} == {}


def test_every_room_has_tests_in_a_folder_of_the_same_name() -> None:
    untested = []
    for folder in sorted({path.parent.relative_to(ROOT) for path in SOURCES}):
        place = folder.relative_to("app") if folder.parts[0] == "app" else folder
        if not list((ROOT / "tests" / place).rglob("test_*.py")):
            untested.append(str(folder))
    assert untested == []
