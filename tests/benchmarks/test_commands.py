"""Every module of benchmarks and research imports, and every command of theirs shows its help."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

#: scripts that a benchmark starts as separate processes: they read arguments or standard input,
#: and have no help
PROCESSES = {
    "benchmarks.faults.attacks.bystander",
    "benchmarks.gpu.load",
    "benchmarks.scaling.empty",
    "benchmarks.scaling.fetch",
    "benchmarks.scaling.load",
    "benchmarks.wire.empty",
}
ROOT = Path(__file__).parents[2]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("benchmarks", "research")
    for path in sorted((ROOT / package).rglob("*.py"))
}
COMMANDS = [
    name
    for name, path in FILES.items()
    if name not in PROCESSES and '\nif __name__ == "__main__":\n' in path.read_text()
]


@pytest.mark.parametrize("name", FILES)
def test_every_module_imports(name: str) -> None:
    importlib.import_module(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_how_it_is_started(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main()
    assert ended.value.code == 0
    assert f"python -m {name.removesuffix('.__main__')}" in capsys.readouterr().out


def test_no_module_changes_where_python_looks_for_modules():
    assert [name for name, path in FILES.items() if "sys.path" in path.read_text()] == []
