"""What happened in a run of the torture test, and the table of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

#: errors that are shown in full
SHOWN = 30


class Tally:
    """Counts of events, and everything that must not happen. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.faults: list[str] = []
        self.longest: dict[str, float] = {}

    def count(self, table: str, name: str, number: int = 1) -> None:
        with self._lock:
            self.counts[table, name] += number

    def fault(self, kind: str, detail: str) -> None:
        """Something that must not happen: lost, extra or wrong."""
        with self._lock:
            self.counts["faults", kind] += 1
            self.faults.append(f"{kind}: {detail}")
            if len(self.faults) <= SHOWN:
                print(f"FAULT {kind}: {detail}", flush=True)

    def wait(self, name: str, seconds: float) -> None:
        """Keep the longest time of this kind."""
        with self._lock:
            self.longest[name] = max(self.longest.get(name, 0.0), seconds)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def table(self) -> str:
        """A line for each kind of count, and the waits."""
        kinds: dict[str, list[str]] = {}
        for (table, name), number in sorted(self.counts.items()):
            kinds.setdefault(table, []).append(f"{name} {number:,}")
        lines: list[tuple[str, Any]] = [(table, ", ".join(each)) for table, each in kinds.items()]
        waits = [f"{name} {seconds:.2f}" for name, seconds in sorted(self.longest.items())]
        lines.append(("longest waits, s", ", ".join(waits) or "none"))
        losses = {kind: self.counts["faults", kind] for kind in ("missing", "extra", "wrong")}
        lines.append(("rows", ", ".join(f"{kind} {count}" for kind, count in losses.items())))
        return "\n".join(f"| {name} | {text} |" for name, text in lines)
