"""One row of the fault table: what was done to the service, and what was counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.traffic import Tally

#: counts that must be 0 in every row
NEVER = ("broken", "dropped", "lost", "twice", "wrong")


@dataclass
class Row:
    """`done` says what was done to the service, with counts."""

    tally: Tally = field(default_factory=Tally)
    done: str = ""
    #: jobs of the run
    jobs: int = 0

    @property
    def good(self) -> bool:
        """Whether all counts are 0 that must be."""
        return not any(getattr(self.tally, name) for name in NEVER)


@dataclass(frozen=True)
class Stage:
    """The folder that a fault may use, and how it prints its progress."""

    folder: Path
    say: Callable[[str], None]
