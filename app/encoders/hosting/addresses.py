"""Addresses of model hosts: `unix:/path/of/a.sock`, or `tcp://name:port`."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

#: how long a connection may take to be made
CONNECT_S = 2.0

#: an idle connection is probed after 30 s, and closed about 30 s after a machine has gone
KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:]+\]|[^:/\[\]]+):(\d{1,5})/?")


@dataclass(frozen=True)
class HostAddress:
    """A Unix socket's path, or a name and port."""

    path: str | None = None
    name: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> HostAddress:
        """Raises ValueError for text that is no address."""
        text = text.strip()
        if text.startswith("unix:") and len(text) > len("unix:"):
            return cls(path=text.removeprefix("unix:"))
        found = _TCP.fullmatch(text)
        if found is None or int(found[2]) > 65_535:
            raise ValueError(
                f"{text!r} is not the address of a model host: write unix:/path/of/a.sock or "
                "tcp://name:port"
            )
        return cls(name=found[1].strip("[]"), port=int(found[2]))

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"tcp://{f'[{self.name}]' if ':' in self.name else self.name}:{self.port}"

    def next(self, number: int) -> HostAddress:
        """Return the address of the host of the device with this number, 0 being this one."""
        if number == 0:
            return self
        if self.path is not None:
            return replace(self, path=f"{self.path}.{number}")
        return replace(self, port=self.port + number)

    def connect(self) -> socket.socket:
        """Raises OSError."""
        if self.path is None:
            return tune(socket.create_connection((self.name, self.port), timeout=CONNECT_S))
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(CONNECT_S)
        try:
            connection.connect(self.path)
        except OSError:
            connection.close()
            raise
        return connection

    def listen(self, backlog: int) -> socket.socket:
        """Return a listening socket; only this user may connect to one in a folder.

        Raises OSError.
        """
        if self.path is None:
            family = socket.AF_INET6 if ":" in self.name else socket.AF_INET
            return socket.create_server((self.name, self.port), family=family, backlog=backlog)
        with suppress(FileNotFoundError):  # the socket of a process that was killed
            self._remove_unused_socket()
        listener = socket.socket(socket.AF_UNIX)
        mask = os.umask(0o177)
        try:
            listener.bind(self.path)
        finally:
            os.umask(mask)
        listener.listen(backlog)
        return listener

    def _remove_unused_socket(self) -> None:
        """Raises OSError for another kind of file, and for a socket that a process listens at."""
        path = Path(str(self.path))
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(f"{path} is not a socket")
        with suppress(ConnectionRefusedError):
            self.connect().close()
            raise OSError(errno.EADDRINUSE, f"another process listens at {path}")
        path.unlink()

    def bound(self, listener: socket.socket) -> HostAddress:
        """Return the address with the port that the system chose for port 0."""
        return self if self.path is not None else replace(self, port=listener.getsockname()[1])


def tune(connection: socket.socket) -> socket.socket:
    """Send small messages at once, and notice a machine that has gone. Returns the connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in KEEP_ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection
