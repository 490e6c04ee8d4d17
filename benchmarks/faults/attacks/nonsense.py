"""A TCP server that takes Redis's port and answers every command with the same bytes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

#: answers that Redis would never give
ANSWERS = (
    b":abc\r\n",
    b"$-5\r\n",
    b"$3\r\nabcdef\r\n",
    b"*3\r\n:1\r\n",
    b"*1000000000\r\n",
    b"$100000000000\r\n",
    b"+OK\r\n",
    b":1\r\n",
    b"$-1\r\n",
    b"*0\r\n",
    b"*2\r\n$7\r\nmessage\r\n:5\r\n",
    b"-ERR no\r\n",
    b"-NOAUTH who are you\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\xff\xfe\x00\r\n",
    b"",
)


class Nonsense:
    """`with Nonsense(port, answer):` a server listens on the port. An empty answer closes the
    connection.
    """

    def __init__(self, port: int, answer: bytes) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", port), backlog=128)
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Nonsense:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while connection.recv(65536):
                if not self._answer:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                connection.sendall(self._answer)
