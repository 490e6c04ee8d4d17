"""The size of a deployment over time: memory and open files of its processes, rows, blobs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.faults.deployment import Deployment, Process
from benchmarks.faults.resources import open_files, resident, tree

#: about how many samples the report lists for each process
SHOWN = 30

TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"


@dataclass(frozen=True)
class Sample:
    """One sample. `rss_mib` and `files` are by process, its descendants included."""

    at: float
    rss_mib: dict[str, float]
    files: dict[str, int]
    rows: dict[str, int]
    blobs: int

    def said(self) -> str:
        """The sample in one line."""
        sizes = ", ".join(f"{name} {size:.0f} MiB" for name, size in self.rss_mib.items())
        return f"{sizes}, {sum(self.rows.values()):,} rows, {self.blobs:,} blobs"


class Samples:
    """All samples of one deployment."""

    def __init__(self, made: Deployment) -> None:
        self.all: list[Sample] = []
        self._made = made
        self._began = time.monotonic()
        self._processes: list[Process] = [*made.apis, *made.workers, made.redis]

    @property
    def names(self) -> list[str]:
        """The names of the processes."""
        return [process.name for process in self._processes]

    def take(self) -> Sample:
        """Take and record a sample."""
        trees = {process.name: tree(process.pid) for process in self._processes}
        sample = Sample(
            at=time.monotonic() - self._began,
            rss_mib={
                name: round(sum(map(resident, pids)) / 2**20, 1) for name, pids in trees.items()
            },
            files={name: sum(map(open_files, pids)) for name, pids in trees.items()},
            rows={str(name): self._rows(str(name)) for (name,) in self._made.postgres.rows(TABLES)},
            blobs=len(self._made.blobs),
        )
        self.all.append(sample)
        return sample

    def of(self, name: str, warm_up: float) -> dict[str, Any]:
        """One process's memory and files over time, and the slope of its memory after
        the warm-up.
        """
        warm = [sample for sample in self.all if sample.at >= warm_up * self.all[-1].at]
        shown = [*self.all[:: max(1, len(self.all) // SHOWN)], self.all[-1]]
        slope = 0.0
        if len(warm) > 2:
            slope = float(
                np.polyfit(
                    [sample.at / 3600 for sample in warm],
                    [sample.rss_mib[name] for sample in warm],
                    1,
                )[0]
            )
        return {
            "slope_mib_per_hour": round(slope, 1),
            "rss_mib": [sample.rss_mib[name] for sample in shown],
            "files": [sample.files[name] for sample in shown],
        }

    def _rows(self, table: str) -> int:
        return self._made.postgres.number(f"SELECT count(*) FROM {table}")  # noqa: S608 -- the schema's own names
