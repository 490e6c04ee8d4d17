"""What a process tree uses, and a limit on its memory: a cgroup where one can be made."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: the API's limit in the compose file
API_BYTES = 4 * 2**30

#: where memory is limited, and the file that holds the limit: cgroup 1, cgroup 2
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)

#: pause between two looks at a tree
LOOK_S = 0.05

_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


@contextmanager
def memory_limit(name: str, limit: int = API_BYTES) -> Iterator[Path | None]:
    """A cgroup with that much memory, for `join`; None if this machine allows none. It must be
    empty at the end.
    """
    folder = _made(name, limit)
    try:
        yield folder
    finally:
        if folder is not None:
            _remove(folder)


def _made(name: str, limit: int) -> Path | None:
    """A cgroup of either version; None without the rights, or if memory is not counted."""
    for root, file in _CGROUPS:
        folder = root / f"anchorage-{name}-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / file).write_text(str(limit))
        except OSError:
            if folder.is_dir():
                folder.rmdir()
            continue
        return folder
    return None


def join(group: Path | None, pid: int) -> None:
    """Put a process, and everything that it starts from now on, under the limit."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(pid))


def _remove(folder: Path) -> None:
    """Remove the cgroup once its last process has ended."""
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.05)


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its ended children; 0 if it has ended."""
    try:
        return (
            sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
            / _TICKS
        )
    except OSError:
        return 0.0


def open_files(pid: int) -> int:
    """How many file descriptors a process holds."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


class Watch:
    """The largest size of a process tree since `begin`."""

    def __init__(self, pid: int) -> None:
        self.max_bytes = 0
        self.max_processes = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            pids = tree(self._pid)
            self.max_processes = max(self.max_processes, len(pids))
            self.max_bytes = max(self.max_bytes, sum(map(resident, pids)))


@contextmanager
def watching(pid: int) -> Iterator[Watch]:
    """Watch a process and its descendants until the end."""
    watch = Watch(pid)
    try:
        yield watch
    finally:
        watch.end()
