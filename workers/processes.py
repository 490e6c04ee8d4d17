"""`anchorage worker`: one process for each device, and one that restarts them."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ProcessPoolExecutor

from sqlalchemy.exc import SQLAlchemyError

from app.db.session import SchemaOutdated, is_sqlite
from app.jobs import supervisor
from app.ops import logs
from app.ops.devices import devices
from app.settings import Settings

log = logging.getLogger("anchorage.worker")

#: how often a worker checks its threads
THREAD_CHECK_S = 1.0

#: how long a stop waits for the processes to hand their jobs back
WORKERS_STOP_S = 15.0

#: what a worker process needs, which takes seconds to import. The process that watches them needs
#: none of it, so this module imports it only where it is used
PRELOADED = ("app.wiring", "workers.main")


def main(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT, and return the exit status.

    Raises ValueError for a SQLite file, whose jobs the API runs, and for an unknown device.
    """
    if settings.redis_url is None and (
        settings.database_url is None or is_sqlite(settings.database_url)
    ):
        raise ValueError(
            "Workers need PostgreSQL: set ANCHORAGE_DATABASE_URL. "
            "With a SQLite file, `anchorage serve` runs the jobs itself."
        )
    context = supervisor.preloading_context(PRELOADED)
    with ProcessPoolExecutor(1, mp_context=context) as asking:
        wanted = asking.submit(devices, settings.devices).result()
    return supervisor.supervise(
        _work_and_exit,
        [(settings, device, number) for number, device in enumerate(wanted)],
        stop_s=WORKERS_STOP_S,
        context=context,
    )


def work(settings: Settings, device: str, number: int) -> int:
    """Run one worker process on one device, and return its exit status.

    Returns 1 when one of its threads has ended, because of a fault or because the device failed.
    Raises SchemaOutdated, and SQLAlchemy's errors.
    """
    from prometheus_client import start_http_server

    from app.wiring import make_services
    from workers.main import Worker

    logs.configure()
    services = make_services(settings, device=device)
    services.db.ping()
    services.db.require_schema()
    if settings.worker_metrics_port is not None:
        start_http_server(settings.worker_metrics_port + number, addr=settings.host)
    worker = Worker(services, threading.Event())
    ended = threading.Event()
    supervisor.on_signals(lambda *_: ended.set())
    supervisor.end_with_parent()
    worker.start()
    log.info("worker %d takes jobs on %s", os.getpid(), device)
    while (alive := worker.alive and not services.encoders.broken) and not ended.wait(
        THREAD_CHECK_S
    ):
        pass
    log.info("worker %d stops", os.getpid())
    worker.stop()
    if alive:
        services.close()
        return 0
    # Nothing else is closed: on a broken device, that could fail or never end.
    log.error(
        "worker %d has lost a thread or its device %s: the process exits to be restarted",
        os.getpid(),
        device,
    )
    return 1


def _work_and_exit(settings: Settings, device: str, number: int) -> None:
    """Run one worker process, and leave it without the destructors of a device."""
    try:
        status = work(settings, device, number)
    except SQLAlchemyError as error:  # the database may be back at the next attempt
        log.error("cannot use the database: %s", error)
        status = 1
    except (SchemaOutdated, ValueError, OSError) as error:
        log.error("the worker on %s cannot start: %s", device, error)
        status = supervisor.CANNOT_START
    logging.shutdown()
    os._exit(status)
