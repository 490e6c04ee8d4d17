"""Real servers in processes of their own, for tests and benchmarks: `anchorage serve`, and a
PostgreSQL cluster that its owner may stop, restart or freeze.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import TupleRow

#: longest wait for a server to listen, generous because importing torch is slow on busy cores
START_S = 180


class Missing(Exception):
    """Data, a library or a program is not on this machine; the message says where to get it."""


@dataclass
class Server:
    """A process that listens on `port`."""

    port: int
    process: subprocess.Popen[bytes]


@contextmanager
def serve(**settings: object) -> Iterator[Server]:
    """`anchorage serve` with its own data folder, on a free port."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("anchorage")), "serve"]
        own = {"data_dir": folder, **settings}
        with started(
            command,
            {f"ANCHORAGE_{name.upper()}": str(value) for name, value in own.items()},
            Path(folder),
        ) as server:
            yield server


@contextmanager
def started(command: list[str], settings: Mapping[str, str], folder: Path) -> Iterator[Server]:
    """Run a command that listens on $ANCHORAGE_PORT."""
    port = free_port()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ANCHORAGE_")
    }
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env={**environment, **settings, "ANCHORAGE_PORT": str(port)},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        for _ in range(10 * START_S):
            if process.poll() is not None:
                sys.exit(f"{command} ended with {process.returncode}:\n{log.read_text()[-2000:]}")
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            sys.exit(f"{command} does not listen:\n{log.read_text()[-2000:]}")
        yield Server(port, process)
    finally:
        if process.poll() is not None:
            print(
                f"{command} had ended with {process.returncode}:\n{log.read_text()[-2000:]}",
                file=sys.stderr,
            )
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()


def free_port() -> int:
    """A free port outside the range that the system assigns, so that no neighbour takes it
    meanwhile.
    """
    for port in itertools.count(20_000 + os.getpid() % 10_000):
        with suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            return port
    raise AssertionError


def binary(*names: str) -> str:
    """The path of the first of these programs that is installed. Raises Missing."""
    folders = [
        os.environ.get("PATH", ""),
        *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True),
        "/usr/sbin",
    ]
    for name in names:
        if found := shutil.which(name, path=os.pathsep.join(folders)):
            return found
    raise Missing(f"there is no {' or '.join(names)} on PATH or below /usr/lib/postgresql")


POOLER = """
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
    home: Path, database: str, role: str = "postgres", sessions: int = 20
) -> Iterator[str]:
    """The URL of a database through a pgbouncer in transaction mode, for one role.

    home      the folder of the server's socket
    sessions  that all clients share

    Raises Missing without the program.
    """
    program, owner = binary("pgbouncer"), home.stat()
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:  # it refuses to run as root
        identity = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
    with tempfile.TemporaryDirectory(prefix="anchorage-pooler-") as name:
        folder, port = Path(name), free_port()
        folder.chmod(0o711)  # as root, another user must read the files
        (folder / "users").write_text(f'"{role}" ""\n')
        text = POOLER.format(host=home, port=port, folder=folder, sessions=sessions)
        (folder / "pgbouncer.ini").write_text(text)
        command = [program, str(folder / "pgbouncer.ini")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, **identity)
        url = f"postgresql://{role}@127.0.0.1:{port}/{database}"
        try:
            ends = time.monotonic() + START_S
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > ends:
                    raise Missing(f"pgbouncer does not answer:\n{(folder / 'log').read_text()}")
                time.sleep(0.1)
            yield url
        finally:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


class Postgres:
    """A separate cluster below `folder`. As root, the user postgres runs it.

    `options` are further options of the server. `database` is the one that `url` and the queries
    here use. The server ends with this process, however that ends. Raises Missing without initdb
    and pg_ctl, or as root without a user postgres.
    """

    def __init__(self, folder: Path, *, options: str = "") -> None:
        self.port = free_port()
        self.database = "postgres"
        self._options = options
        self._home = folder / "postgres"
        self._home.mkdir()
        self._identity = self._other_user()
        self._initdb, self._pg_ctl = binary("initdb"), binary("pg_ctl")

    @property
    def url(self) -> str:
        """The URL of the present database, as SQLAlchemy reads it."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{self.database}"

    def _other_user(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            raise Missing(
                "there is no user postgres, and PostgreSQL refuses to run as root"
            ) from None
        os.chown(self._home, user.pw_uid, user.pw_gid)
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def _run(self, *command: str) -> None:
        log = self._home / "commands.log"
        with log.open("ab") as output:
            done = subprocess.run(
                command, stdout=output, stderr=output, cwd=self._home, check=False, **self._identity
            )
        if done.returncode:
            raise RuntimeError(
                f"{Path(command[0]).name} failed:\n" + "\n".join(log.read_text().splitlines()[-15:])
            )

    def create(self) -> None:
        """Create the cluster and start it."""
        self._run(
            self._initdb,
            "-D",
            str(self._home / "data"),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        )
        self._end_with_this_process()
        self.start()

    def start(self) -> None:
        """Start the server, and return once it accepts connections."""
        own = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
        options = f"{own} {self._options}"
        self._control("start", "-o", options, "-l", str(self._home / "server.log"))

    def _end_with_this_process(self) -> None:
        """Start a shell that stops the server once its standard input closes: a process that is
        killed runs no code of its own. A frozen server is thawed first.
        """
        data = shlex.quote(str(self._home / "data"))
        script = (
            f"read -r _; p=$(head -n 1 {data}/postmaster.pid) && kill -CONT $p "
            f"$(cat /proc/$p/task/$p/children); {shlex.quote(self._pg_ctl)} stop -D {data} "
            f"-m immediate -w; rm -rf {data}"
        )
        watch = subprocess.Popen(
            ["sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **self._identity,
        )
        atexit.register(watch.communicate)

    def restart(self, mode: str) -> None:
        """`pg_ctl restart` in one of its modes."""
        self._control("restart", "-m", mode, "-l", str(self._home / "server.log"))

    def stop(self, mode: str = "immediate") -> None:
        """`pg_ctl stop` in one of its modes."""
        self._control("stop", "-m", mode)

    def freeze(self) -> None:
        """Stop all of its processes. The kernel still accepts connections and bytes, but nothing
        answers.
        """
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let its processes continue."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        postmaster = (self._home / "data" / "postmaster.pid").read_text().split()[0]
        os.kill(int(postmaster), number)  # from here on it starts no further process
        for child in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(child), number)

    def _control(self, verb: str, *options: str) -> None:
        self._run(self._pg_ctl, verb, "-D", str(self._home / "data"), "-w", "-t", "60", *options)

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection[TupleRow]:
        """A connection to the present database."""
        return psycopg.connect(self.url.replace("+psycopg", ""), autocommit=autocommit)

    def rows(self, query: str, *arguments: object) -> list[TupleRow]:
        """The rows that a query returns."""
        with self.connect() as connection:
            return connection.execute(query, arguments).fetchall()

    def execute(self, *statements: str) -> None:
        """Execute statements, each in its own transaction."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def number(self, query: str, *arguments: object) -> int:
        """The one number that a query returns."""
        return int(self.rows(query, *arguments)[0][0])
