"""Small and read-only disks for tests of faults: real file systems, where the user may mount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this user may not mount: {done.stderr.decode().strip()}")


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Yield an empty disk of this size."""
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a small disk read-only in the block."""
    mount("-o", "remount,ro", str(folder))
    try:
        yield
    finally:
        mount("-o", "remount,rw", str(folder))
