"""One row of the fault table: what was done to the service, and what was counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.traffic import Tally

#: counts that must be 0 in every row
NEVER = ("broken", "dropped", "lost", "twice", "wrong")


@dataclass
class Row:
    """`done` says what was done to the service, with counts; `skipped` says why nothing was."""

    tally: Tally = field(default_factory=Tally)
    done: str = ""
    skipped: str | None = None
    seconds: float = 0.0
    #: further numbers for the report
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether all counts are 0 that must be."""
        return self.skipped is not None or not any(getattr(self.tally, name) for name in NEVER)


@dataclass(frozen=True)
class Stage:
    """The folder that a fault may use, and how it prints its progress."""

    folder: Path
    say: Callable[[str], None]
