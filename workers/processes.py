"""`python -m workers`: one process a device, each warm for as long as it lives, watched by one that computes nothing.

Processes are spawned, never forked: CUDA does not survive a fork.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.context import SpawnProcess

import torch
from prometheus_client import start_http_server
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from app import logs
from app.settings import Settings
from app.storage.db import SchemaOutdated, is_sqlite
from app.wiring import make_services, make_wakeup
from workers.main import Worker

log = logging.getLogger("anchorage.worker")

#: a process that ended by itself is started again after this pause
RESTART_S = 1.0

#: how long a stop waits for the processes, which hand their jobs back meanwhile
STOP_S = 15.0


class NotShared(Exception):
    """The database belongs to one process, which runs its jobs itself."""


def devices(wish: str) -> list[str]:
    """The torch devices to use: those named, or every CUDA device, or the CPU. Raises ValueError for one that is not there."""
    if wish == "auto":
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]
    found = [name.strip() for name in wish.split(",") if name.strip()]
    for name in found:
        kind, colon, index = name.partition(":")
        known = name == "cpu" or (kind == "cuda" and (not colon or index.isdecimal()))
        if not known or (kind == "cuda" and int(index or 0) >= torch.cuda.device_count()):
            raise ValueError(f"there is no device {name!r} here: auto, cpu, or some of {torch.cuda.device_count()} CUDA devices")
    if not found:
        raise ValueError("expected auto, cpu, or CUDA devices")
    return found


def main(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status.

    Raises NotShared, ValueError for a device that is not there, SchemaOutdated, and SQLAlchemy's errors.
    """
    if settings.redis_url is None and (settings.database_url is None or is_sqlite(settings.database_url)):
        raise NotShared(
            "`anchorage serve` runs the jobs of its SQLite file itself. Workers need PostgreSQL: set ANCHORAGE_DATABASE_URL"
        )
    wanted = devices(settings.devices)
    if len(wanted) == 1:
        return work(settings, wanted[0], 0)
    return _watch(settings, wanted)


def work(settings: Settings, device: str, number: int) -> int:
    """One worker process: threads that share what is warm on one device. Returns 1 when one of them has died."""
    logs.configure(settings.log_format)
    services = make_services(settings, device=device)
    services.db.ping()
    services.db.require_schema()
    if settings.worker_metrics_port is not None:
        start_http_server(settings.worker_metrics_port + number, addr=settings.worker_metrics_host)
    worker = Worker(services, make_wakeup(settings), threads=settings.worker_threads)
    ended = threading.Event()
    for number_of_signal in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number_of_signal, lambda *_: ended.set())
    worker.start()
    log.info("worker %d takes jobs on %s, %d at once", os.getpid(), device, settings.worker_threads)
    while (alive := worker.alive) and not ended.wait(RESTART_S):
        pass
    log.info("worker %d stops", os.getpid())
    worker.stop()
    services.close()
    if not alive:
        log.error("a thread of worker %d has died: the process ends, so that it is started again", os.getpid())
    return 0 if alive else 1


def _work_and_exit(settings: Settings, device: str, number: int) -> None:
    sys.exit(work(settings, device, number))


def _watch(settings: Settings, wanted: list[str]) -> int:
    """A process for each device; one that ends by itself is started again."""
    spawn = multiprocessing.get_context("spawn")
    ended = threading.Event()
    for number_of_signal in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number_of_signal, lambda *_: ended.set())

    def start(number: int) -> SpawnProcess:
        process = spawn.Process(target=_work_and_exit, args=(settings, wanted[number], number), name=wanted[number])
        process.start()
        return process

    processes = [start(number) for number in range(len(wanted))]
    while not ended.wait(RESTART_S):
        for number, process in enumerate(processes):
            if not process.is_alive():
                log.warning("the worker on %s ended with %s: started again", wanted[number], process.exitcode)
                processes[number] = start(number)
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
    return 0


def command() -> None:
    """The entry of `python -m workers`."""
    try:
        settings = Settings()
    except ValidationError as error:  # its text would show what was given, and an address may hold a password
        sys.exit("; ".join(f"{item['loc'][0]}: {item['msg']}" for item in error.errors()))
    try:
        logs.configure(settings.log_format)
        sys.exit(main(settings))
    except (NotShared, SchemaOutdated, ValueError, OSError) as error:
        sys.exit(str(error))
    except SQLAlchemyError as error:
        sys.exit(f"the database cannot be used: {error}")
