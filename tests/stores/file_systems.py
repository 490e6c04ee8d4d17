"""Small file systems of their own for tests of full and read-only disks. They need root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size_kb: int) -> Iterator[Path]:
    """Mount an empty file system of `size_kb`; skip the test where that is not allowed."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(folder)]
    try:
        subprocess.run(["mount", *options], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine does not let the test mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def make_read_only(folder: Path) -> None:
    """Make a mounted file system read-only."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def fill_disk(folder: Path, leave_kb: int) -> None:
    """Leave only some kilobytes free."""
    with (folder / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1024))
    size = (folder / "ballast").stat().st_size
    with (folder / "ballast").open("r+b") as file:
        file.truncate(max(0, size - leave_kb * 1024))
