"""A pgbouncer in transaction mode, in front of a PostgreSQL with pgvector."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from app.demo.server import free_port
from tests.pgvector_server import PgvectorServer
from tests.waiting import until

#: sessions that all clients share
SESSIONS = 2

CONFIGURATION = """
[databases]
* = host={host}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {sessions}
server_reset_query =
"""


@contextmanager
def pgbouncer(
    server: PgvectorServer, role: str = "postgres", sessions: int = SESSIONS
) -> Iterator[str]:
    """The URL of the server's present database through a pooler, for one role.

    Skips the test where there is none; with CI=true that is a failure.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("pgbouncer is not installed")
    with tempfile.TemporaryDirectory(prefix="anchorage-pooler-") as name:
        folder, port = Path(name), free_port()
        folder.chmod(0o711)  # as root, another user must read the files
        (folder / "users").write_text(f'"{role}" ""\n')
        text = CONFIGURATION.format(host=server.home, port=port, folder=folder, sessions=sessions)
        (folder / "pgbouncer.ini").write_text(text)
        command = [program, str(folder / "pgbouncer.ini")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, **server._identity)
        url = f"postgresql://{role}@127.0.0.1:{port}/{server.database}"
        try:
            until(lambda: process.poll() is not None or _answers(url), 20)
            assert process.poll() is None, (folder / "log").read_text()
            yield url
        finally:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True
