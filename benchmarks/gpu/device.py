"""The measured device: its clock, its memory, and how busy it is."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from benchmarks.common import machine

#: pause between two readings of nvidia-smi
SAMPLE_MS = 100


@dataclass(frozen=True)
class Device:
    """`cpu` or `cuda`."""

    name: str

    @property
    def gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.name != "cpu"

    def synchronise(self) -> None:
        """Wait for everything that was started on it."""
        if self.gpu:
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], object]) -> float:
        """The time of one call, from an idle device to an idle device."""
        self.synchronise()
        started = time.perf_counter()
        call()
        self.synchronise()
        return time.perf_counter() - started

    def peak(self, call: Callable[[], object]) -> int:
        """The bytes that a call takes at its peak, in addition to those held before it."""
        gc.collect()
        if self.gpu:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            self.synchronise()
            return torch.cuda.max_memory_allocated() - before
        ctypes.CDLL(None).malloc_trim(0)  # memory that is kept for later would hide the call's own
        before = _memory("VmRSS")
        # Reset the high-water mark, so that it covers only the call.
        Path("/proc/self/clear_refs").write_text("5")
        call()
        return max(0, _memory("VmHWM") - before)

    def about(self) -> dict[str, Any]:
        """What a reader needs to know about the machine to judge the numbers."""
        found = {**machine(), "threads": torch.get_num_threads()}
        if self.gpu:
            found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        return found

    @property
    def environment(self) -> dict[str, str]:
        """Variables for processes that must use this device and no other."""
        return {} if self.gpu else {"CUDA_VISIBLE_DEVICES": ""}


def choose(name: str) -> Device:
    """`auto` is the first GPU, or the CPU without one. Raises ValueError for a missing device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"torch sees no GPU here, so that {name!r} cannot be measured. Use cpu.")
    return Device(name)


@dataclass
class Busy:
    """Readings of the GPU's utilisation in percent; empty without a GPU or nvidia-smi."""

    percent: list[float] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        """The mean share of the time in which a kernel ran; None where it is unknown."""
        return mean(self.percent) / 100 if self.percent else None


@contextmanager
def watched(device: Device) -> Iterator[Busy]:
    """Read the GPU's utilisation within this block."""
    busy, program = Busy(), shutil.which("nvidia-smi")
    if not device.gpu or program is None:
        yield busy
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    form = ["--format=csv,noheader,nounits", f"--loop-ms={SAMPLE_MS}"]
    process = subprocess.Popen(
        [program, f"--id={visible or 0}", "--query-gpu=utilization.gpu", *form],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield busy
    finally:
        process.terminate()
        lines = process.communicate()[0].splitlines()
        busy.percent = [float(line) for line in lines if line.strip().isdecimal()]


def paired(
    device: Device, contestants: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each contestant in every round. They take turns; the first turn is not counted."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(-1, rounds):
        for name, call in contestants.items():
            seconds = device.seconds(call)
            if turn >= 0:
                found[name].append(seconds)
    return found


def ratio(one: list[float], other: list[float]) -> float:
    """The median over the rounds of one contestant's number divided by the other's."""
    return median(a / b for a, b in zip(one, other, strict=True))


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
