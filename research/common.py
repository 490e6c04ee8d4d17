"""What the reproductions share: where their results lie."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
