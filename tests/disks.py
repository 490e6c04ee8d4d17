"""Small, full and read-only disks for tests of faults: real file systems, where one may mount."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.waiting import until


@contextmanager
def small_disk(folder: Path, size_kb: int) -> Iterator[Path]:
    """Yield an empty disk; skip the test where the user may not mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this user may not mount: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    """Change a disk of `small_disk`, as to "size=64m". Waits until no file is open for writing."""
    mount = ["mount", "-o", f"remount,{options}", str(folder)]

    def done() -> bool:
        gc.collect()  # clients of stores close their files when they are dropped
        return subprocess.run(mount, capture_output=True, check=False).returncode == 0

    until(done, within_s=30, every_s=0.1)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a disk read-only in the block."""
    remount(folder, "ro")
    try:
        yield
    finally:
        remount(folder, "rw")


def fill_disk(folder: Path, leave_kb: int) -> None:
    """Leave only some kilobytes free."""
    with (folder / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1024))
    size = (folder / "ballast").stat().st_size
    with (folder / "ballast").open("r+b") as file:
        file.truncate(max(0, size - leave_kb * 1024))
