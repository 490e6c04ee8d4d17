"""Every path in CONTRIBUTING.md exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_path_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"(?<![\w/])(?:app|docs|scripts|tests|workers)/[\w./-]*\w", text)
    assert len(paths) > 40
    assert [path for path in paths if "KIND" not in path and not (ROOT / path).exists()] == []
