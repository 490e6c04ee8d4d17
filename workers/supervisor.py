"""Restarts child processes that end unexpectedly, and ends them with their parent."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any

log = logging.getLogger("anchorage.processes")

#: the pause before a process is restarted
RESTART_S = 1.0


def supervise(
    target: Callable[..., None],
    calls: Sequence[tuple[Any, ...]],
    *,
    stop_s: float,
    lost: Callable[[int], object] = lambda pid: None,
) -> None:
    """Run `target(*call)` in one process per call until SIGTERM or SIGINT, then stop them.

    Processes are spawned, because CUDA does not survive a fork. A process that does not stop within
    `stop_s` is killed. `lost` is called with the id of each process that ended unexpectedly.
    """
    spawn = multiprocessing.get_context("spawn")
    ended = threading.Event()
    _on_signals(lambda *_: ended.set())

    def start(call: tuple[Any, ...]) -> SpawnProcess:
        process = spawn.Process(target=target, args=call)
        process.start()
        return process

    processes = [start(call) for call in calls]
    while not ended.wait(RESTART_S):
        for place, process in enumerate(processes):
            if not process.is_alive():
                log.warning(
                    "process %s ended with status %s and is restarted",
                    process.pid,
                    process.exitcode,
                )
                lost(process.pid or 0)
                processes[place] = start(calls[place])

    def terminate(*_: object) -> None:
        for process in processes:
            process.terminate()

    _on_signals(terminate)  # the children handle a second signal themselves
    terminate()
    deadline = time.monotonic() + stop_s
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()


def end_with_parent() -> None:
    """Send this process SIGTERM when its parent has ended, however that happened."""
    threading.Thread(target=_wait_for_parent, name="parent", daemon=True).start()


def _on_signals(handle: Callable[..., None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
