"""The house stays small: what a change adds names what it replaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.settings import Settings
from scripts.rooms import OVER, ROOMS, lines_of

ROOT = Path(__file__).parents[1]


def lines_below(*folders: str) -> int:
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sum(path.read_text().count("\n") for path in files)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_no_more_lines_than_its_budget(room: str) -> None:
    assert lines_of(room) <= OVER.get(room, ROOMS[room])


def test_every_file_of_the_product_is_in_a_room() -> None:
    assert sum(lines_of(room) for room in ROOMS) == lines_below("app", "workers")


@pytest.mark.parametrize(
    ("folders", "most"),
    [
        # for good: app 44,000, tests 32,000, benchmarks 11,000
        (("app", "workers"), 44_000),
        (("tests", "clients/python/tests"), 32_000),
        (("benchmarks", "research"), 11_000),
    ],
)
def test_the_code_has_no_more_lines_than_its_budget(folders: tuple[str, ...], most: int) -> None:
    assert lines_below(*folders) <= most


def test_no_file_of_the_product_has_more_than_500_lines() -> None:
    files = [*(ROOT / "app").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in files}
    assert {path: count for path, count in lines.items() if count > 500} == {}


def test_there_are_at_most_40_pages_and_40000_words() -> None:
    pages = list((ROOT / "docs").rglob("*.md"))
    assert len(pages) <= 40
    assert sum(len(page.read_text().split()) for page in pages) <= 40_000


def test_there_are_at_most_28_settings() -> None:
    assert len(Settings.model_fields) <= 28
