"""What the reproductions share: where their results are."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
