"""Restarts child processes that end unexpectedly, and ends them with their parent."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

log = logging.getLogger("anchorage.processes")

#: the pause before a process is restarted
RESTART_S = 1.0

#: the exit status of a process that another attempt could not start either
CANNOT_START = 2

#: most characters of the folder of temporary files: a Unix socket's path has at most 107
MAX_TEMPORARY_FOLDER = 60


def preloading_context(modules: Sequence[str]) -> BaseContext:
    """Return a context whose processes have imported these modules when they start.

    On Linux one process imports them, beginning now, and does nothing else: it starts no thread
    and no CUDA, so its forks can use both. Elsewhere each process imports what it needs.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    if len(tempfile.gettempdir()) > MAX_TEMPORARY_FOLDER:
        tempfile.tempdir = "/tmp"  # noqa: S108  # what is made there belongs to this user alone
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    forkserver.ensure_running()
    return context


def supervise(
    target: Callable[..., None],
    calls: Sequence[tuple[Any, ...]],
    *,
    stop_s: float,
    lost: Callable[[int], object] = lambda pid: None,
    context: BaseContext | None = None,
) -> int:
    """Run `target(*call)` in one process per call until SIGTERM or SIGINT, then stop them.

    context  how processes start; None: spawned, because CUDA does not survive a fork

    Returns 0, or CANNOT_START as soon as a process ends with it. A process that does not stop
    within `stop_s` is killed. `lost` is called with the id of each process that ended unexpectedly.
    """
    starts: Any = context or multiprocessing.get_context("spawn")
    ended = threading.Event()
    on_signals(lambda *_: ended.set())

    def start(call: tuple[Any, ...]) -> BaseProcess:
        process: BaseProcess = starts.Process(target=target, args=call)
        process.start()
        return process

    status = 0
    processes = [start(call) for call in calls]
    while not ended.wait(RESTART_S):
        for place, process in enumerate(processes):
            if process.is_alive():
                continue
            if process.exitcode == CANNOT_START:
                status = CANNOT_START
                ended.set()
                break
            log.warning(
                "process %s ended with status %s and is restarted", process.pid, process.exitcode
            )
            lost(process.pid or 0)
            processes[place] = start(calls[place])

    _stop(processes, stop_s)
    return status


def _stop(processes: Sequence[BaseProcess], stop_s: float) -> None:
    """Terminate the processes, and kill those that do not end within `stop_s`."""

    def terminate(*_: object) -> None:
        for process in processes:
            process.terminate()

    on_signals(terminate)  # the children handle a second signal themselves
    terminate()
    deadline = time.monotonic() + stop_s
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()


def end_with_parent() -> None:
    """Send this process SIGTERM when the one that started it ends; without one, do nothing."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def on_signals(handle: Callable[..., None]) -> None:
    """Call `handle` at SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
