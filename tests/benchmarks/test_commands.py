"""Every module of benchmarks and research imports, and every command of theirs shows its help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: scripts that a benchmark starts as separate processes: they have no help
PROCESSES = {"benchmarks.empty", "benchmarks.search.peers"}
#: imports each module named on standard input, and prints the help of those that are commands
CHECK = """
import contextlib, importlib, io, sys
for line in sys.stdin.read().split():
    name, kind = line.split(":")
    module = importlib.import_module(name)
    if kind == "command":
        sys.argv = [name, "--help"]
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            try:
                module.main()
            except SystemExit as ended:
                assert ended.code == 0, name
        assert f"python -m {name.removesuffix('.__main__')}" in shown.getvalue(), name
"""


def test_every_module_imports_and_every_command_shows_how_it_is_started() -> None:
    lines = []
    for package in ("benchmarks", "research"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            text = path.read_text()
            assert "sys.path" not in text, name
            command = name not in PROCESSES and '\nif __name__ == "__main__":\n' in text
            lines.append(f"{name.removesuffix('.__init__')}:{'command' if command else 'module'}")
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
