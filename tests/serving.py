"""Services of this process behind real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from app.http.connections import BoundedHttp
from app.main import create_app
from app.settings import Settings
from tests.waiting import until


@contextmanager
def listening(app: FastAPI) -> Iterator[tuple[str, int]]:
    """Serve an application of this process behind a real socket; yields its host and port."""
    server = uvicorn.Server(
        uvicorn.Config(app, http=BoundedHttp, log_config=None, access_log=False, ws="none")
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until(lambda: server.started or not thread.is_alive(), every_s=0.01)
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def serving(**settings: Any) -> Iterator[str]:
    """Serve with these settings in this process; yields the address."""
    with listening(create_app(Settings(**settings))) as (host, port):
        yield f"http://{host}:{port}"
