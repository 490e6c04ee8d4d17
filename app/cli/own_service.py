"""A service that a command starts for itself: the same application, on a private socket.

Other commands find it by the data folder, so that they can ask about what this one does.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

from app import server
from app.cli.shared import SOCKET_SCHEME, explain_faults
from app.db.session import is_sqlite
from app.main import create_app
from app.ops import logs
from app.settings import Settings
from workers.main import Worker


@contextmanager
def run(settings: Settings, announce: Callable[[str], None]) -> Iterator[str]:
    """Serve until the block ends, and yield the address. Only this user reaches the socket.

    announce  says where it listens
    Raises typer.BadParameter.
    """
    own = settings.model_copy(
        update={"allowed_hosts": "*", "console": False, "rate_limit": None, "workers": 1}
    )
    logs.configure(settings.log_format, level=logging.WARNING)
    with ExitStack() as opened:
        with explain_faults():
            application = create_app(own)
            services = application.state.services
            if is_sqlite(services.db.url):
                services.db.upgrade()
            else:  # others may use it: the operator chooses when
                services.db.require_schema()
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="anchorage-"))
            socket = Path(folder) / "socket"
            opened.enter_context(server.in_thread(own, application, socket))
            if own.redis_url is not None:  # the application leaves jobs to workers: none may run
                worker = Worker(services, Event(), threads=own.worker_threads)
                worker.start()
                opened.callback(worker.stop)
        announce(f"{SOCKET_SCHEME}{socket}")
        opened.callback(announce, "")
        yield f"{SOCKET_SCHEME}{socket}"
