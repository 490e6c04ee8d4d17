"""`anchorage serve` and `anchorage worker`."""

from __future__ import annotations

import errno
import gc
import logging
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.local import explain_faults, has_usable_key, lock_data_dir, read_settings
from app.cli.output import warn

if TYPE_CHECKING:
    from app.context import Services
    from app.settings import Settings

#: how long a client may read nothing of its answer before its connection is closed
UNREAD_MS = 30_000


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default: 127.0.0.1")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; default: 8080")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder for SQLite and the blobs; default: .anchorage")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that answer requests; default: 1. More need Redis")
    ] = None,
) -> None:
    """Run the service. It needs no other service: it uses SQLite, and runs jobs in its process.

    With ANCHORAGE_REDIS_URL, workers (`anchorage worker`) run the jobs. Every setting is an
    environment variable, such as ANCHORAGE_PORT, and an option replaces it.
    """
    settings = read_settings(host=host, port=port, data_dir=data_dir, workers=workers)
    if settings.workers > 1 and settings.redis_url is None:
        raise typer.BadParameter("Several processes need Redis. Set ANCHORAGE_REDIS_URL.")
    # Both before torch, which takes seconds to load.
    with _bind(settings) as listening, explain_faults(), lock_data_dir(settings):
        _serve(settings, listening)


def worker() -> None:
    """Run jobs in one process for each device, until SIGTERM.

    It needs the API's PostgreSQL database and data dir.
    """
    settings = read_settings()
    from app.db.session import Database
    from app.ops import logs
    from workers.processes import main

    logs.configure()

    with explain_faults():
        if settings.database_url is not None:  # a process of a device would start again for ever
            Database(settings.database_url).ping()
        raise typer.Exit(main(settings))


def _serve(settings: Settings, listening: socket.socket) -> None:
    gc.disable()  # until the server runs: a seventh of the start would be walks over new modules
    from app.ops import logs

    logs.configure()
    logging.getLogger("anchorage.server").info("starting")
    from app import server
    from app.main import create_app, is_loopback, requires_keys

    application = create_app(settings)
    services = application.state.services
    services.db.upgrade()
    if requires_keys(settings):
        _require_a_key(services, settings)
    elif not is_loopback(settings.host):
        warn(
            f"WARNING: the server listens on {settings.host} without API keys, because "
            "ANCHORAGE_AUTH is none: anyone who reaches this port can read and delete everything."
        )
    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    listening.listen()  # from here on, requests wait for the start
    logging.getLogger("anchorage.server").info("listening on %s", url)
    if sys.stderr.isatty():
        typer.echo(
            f"API and its documentation: {url}/docs, console: {url}/console\n"
            f"Data: {settings.data_dir.absolute()}",
            err=True,
        )
    if settings.workers == 1:
        server.run(settings, application, listening)
    else:
        services.close()
        server.run_several(settings, listening)


def _bind(settings: Settings) -> socket.socket:
    """Return the bound socket. Raises typer.BadParameter."""
    host, port = settings.host, settings.port
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sys.platform == "linux":  # connections inherit it
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        if error.errno != errno.EADDRINUSE:
            raise typer.BadParameter(f"{host}:{port} cannot be used: {error.strerror}.") from None
        other = port + 1 if port < 65_535 else port - 1
        raise typer.BadParameter(
            f"Another program uses port {port} of {host}. Stop it, or choose another port: "
            f"anchorage serve --port {other}"
        ) from None
    listening.set_inheritable(True)
    return listening


def _require_a_key(services: Services, settings: Settings) -> None:
    """Raises typer.BadParameter if callers need keys and none works."""
    if not has_usable_key(services):
        where = settings.data_dir if settings.database_url is None else "its database"
        raise typer.BadParameter(
            f"A server that is listening on {settings.host} requires API keys, and {where} has "
            "none. Create one with `anchorage keys create --name first --scope admin` and the same "
            "ANCHORAGE_ variables, or set ANCHORAGE_AUTH=none to admit every client."
        )
