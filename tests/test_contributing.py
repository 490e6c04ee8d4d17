"""Every path and every name of the code in CONTRIBUTING.md exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOPS = ("app", "workers", "tests", "benchmarks")


def test_every_path_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"(?<![\w/])(?:app|docs|scripts|tests|workers)/[\w./-]*\w", text)
    assert len(paths) > 40
    assert [path for path in paths if "KIND" not in path and not (ROOT / path).exists()] == []


def test_every_name_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    quoted = re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", text)
    names = {name.rpartition(".")[2] for name in quoted if not re.search(r"\.(md|py|toml)$", name)}
    folders = {
        path.name for top in (*TOPS, "clients") for path in (ROOT / top).rglob("*") if path.is_dir()
    }
    code = "\n".join(
        path.read_text()
        for top in TOPS
        for path in (ROOT / top).rglob("*.py")
        if path.name != "test_contributing.py"
    )
    words = set(re.findall(r"\w+", code))
    assert len(names) > 30
    assert sorted(names - words - folders) == []
