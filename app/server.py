"""The HTTP server: one process, or several that share a port."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from prometheus_client.multiprocess import mark_process_dead

from app.http.connections import BACKLOG, BoundedHttp, open_files
from app.jobs.supervisor import end_with_parent, preloading_context, supervise
from app.main import create_app
from app.ops import logs
from app.ops.health import METRICS_DIR
from app.settings import Settings

log = logging.getLogger("anchorage.server")

#: lanes of all processes together for each core: twice as many cost busy processes a sixth
LANES_PER_CORE = 4

#: longer than load balancers and clients keep idle connections: closing first could cut a request
IDLE_CONNECTION_S = 75

#: how long a stopping server waits for requests in flight
SHUTDOWN_S = 25

#: how long to wait for a stopping process after its own time limits
STOP_GRACE_S = 5.0


def run(settings: Settings, application: FastAPI, listening: socket.socket) -> None:
    """Serve in this process, until SIGTERM or SIGINT."""
    _build_routes(application)
    server = uvicorn.Server(_config(settings, application))
    _drain_first(server, application.state.admission, settings.drain_s)
    gc.collect()
    gc.freeze()  # the collector need not walk all of torch while requests wait
    gc.enable()
    server.run(sockets=[listening])


def run_several(settings: Settings, listening: socket.socket) -> None:
    """Serve in several processes until SIGTERM or SIGINT, and restart a process that ends."""
    with tempfile.TemporaryDirectory(prefix="anchorage-metrics-") as folder:
        os.environ[METRICS_DIR] = folder
        log.info("starting %d processes on %s:%d", settings.workers, *listening.getsockname()[:2])
        stop_s = settings.drain_s + SHUTDOWN_S + STOP_GRACE_S
        context = preloading_context((__name__,))  # it inherits METRICS_DIR
        supervise(
            _serve,
            [(settings, listening)] * settings.workers,
            stop_s=stop_s,
            lost=mark_process_dead,
            context=context,
        )


def _serve(settings: Settings, listening: socket.socket) -> None:
    """Serve in one of several processes, until its parent ends."""
    logs.configure()
    # A terminal sends SIGINT to all processes, and the parent passes it on as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    run(settings, create_shared(settings), listening)


def create_shared(settings: Settings) -> FastAPI:
    """Returns the application of one of several processes, and sets its number of torch threads.

    Fits get the process's share of the cores. Its lanes, which have one torch thread each, are up
    to LANES_PER_CORE times as many: a client alone uses more cores than the share, and the
    operating system divides them between busy processes.
    """
    if settings.threads is not None:
        return create_app(settings)
    cores = torch.get_num_threads()
    share = max(1, cores // settings.workers)
    torch.set_num_threads(min(cores, LANES_PER_CORE * share))
    application = create_app(settings)  # counts its lanes now
    torch.set_num_threads(share)
    return application


def _config(settings: Settings, application: FastAPI | None) -> uvicorn.Config:
    return uvicorn.Config(
        application or "",
        host=settings.host,
        port=settings.port,
        timeout_graceful_shutdown=SHUTDOWN_S,
        timeout_keep_alive=IDLE_CONNECTION_S,
        http=BoundedHttp,
        backlog=min(open_files() // 4, BACKLOG),
        ws="none",
        # X-Forwarded-For counts only from the proxies that uvicorn's variable names.
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
        log_config=None,
        access_log=False,
        server_header=False,
    )


def _build_routes(application: FastAPI) -> None:
    """Build the routes now: FastAPI builds them with the first request, which a thread that imports
    a model at that moment can make fail.
    """
    nowhere = {"type": "http", "method": "GET", "path": "/-", "headers": [], "root_path": ""}
    for route in application.routes:
        route.matches(dict(nowhere))


def _drain_first(server: Any, admission: Any, drain_s: float) -> None:
    """At the first signal, report `stopping` in /readyz and close connections after their answers.

    The server accepts requests for `drain_s` seconds, until load balancers notice, and then
    finishes the requests in flight. A second signal ends the waiting.
    """
    stop = server.handle_exit

    def handle(number: int, frame: Any) -> None:
        if number == signal.SIGINT and multiprocessing.parent_process() is not None:
            return
        if admission.stopping or drain_s == 0:
            admission.stopping = True
            stop(number, frame)
            return
        admission.stopping = True
        timer = threading.Timer(drain_s, stop, (signal.SIGTERM, None))
        timer.daemon = True
        timer.start()

    server.handle_exit = handle
