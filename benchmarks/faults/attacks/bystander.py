"""A well-behaved client in a separate process, which keeps asking for /livez and for a warm
translation.

The process imports nothing heavy, so that it measures the server and not itself. Run as a script,
it reads a JSON object from standard input: `url`, `key`, `body` (of POST /translate), `pause_s`. It
prints one JSON line for each request and each answer, until it is killed.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

#: pause between two requests of one kind
PAUSE_S = 0.02

#: after this time without an answer, the client drops the connection and sends the request again
PATIENCE_S = 120

LIVEZ, TRANSLATE = "livez", "translate"


@dataclass(frozen=True)
class Answer:
    """One request of the client, from its first try to its 200."""

    kind: str
    at: float
    seconds: float
    #: tries that were refused, cut, or answered with another status
    failed: int


class Bystander:
    """The client's process, and what it has reported."""

    def __init__(self, url: str, key: str, body: dict[str, Any]) -> None:
        self.answers: list[Answer] = []
        self._open: dict[str, float] = {}
        command = [sys.executable, "-S", __file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({"url": url, "key": key, "body": body, "pause_s": PAUSE_S})
        )
        self._process.stdin.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def since(self, moment: float, kind: str) -> list[float]:
        """How long each request of a kind took that ended after `moment`. A request without an
        answer counts with its age.
        """
        took = [
            answer.seconds for answer in self.answers if answer.kind == kind and answer.at >= moment
        ]
        began = self._open.get(kind)
        return took if began is None else [*took, time.monotonic() - began]

    def failed_since(self, moment: float) -> int:
        """Tries that got no 200."""
        return sum(answer.failed for answer in self.answers if answer.at >= moment)

    def end(self) -> None:
        """Stop the client."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, at, seconds, failed = json.loads(line)
            if seconds is None:
                self._open[kind] = at
            else:
                self._open.pop(kind, None)
                self.answers.append(Answer(kind, at, seconds, failed))


@contextmanager
def bystander(url: str, key: str, body: dict[str, Any]) -> Iterator[Bystander]:
    """A well-behaved client of the API at `url`, stopped afterwards."""
    asking = Bystander(url, key, body)
    try:
        yield asking
    finally:
        asking.end()


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies; 0 if there are none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def _main() -> None:
    about = json.loads(sys.stdin.read())
    address = about["url"].removeprefix("http://")
    threads = [
        threading.Thread(
            target=_ask,
            args=(LIVEZ, address, "GET", "/livez", b"", {"Connection": "close"}, about["pause_s"]),
        ),
        threading.Thread(
            target=_ask,
            args=(
                TRANSLATE,
                address,
                "POST",
                "/translate",
                json.dumps(about["body"]).encode(),
                {"Content-Type": "application/json", "Authorization": f"Bearer {about['key']}"},
                about["pause_s"],
            ),
        ),
    ]
    for thread in threads:
        thread.start()


def _ask(
    kind: str,
    address: str,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
    pause_s: float,
) -> None:
    """Send the same request again and again, each time until it is answered with 200."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    while True:
        began, failed = time.monotonic(), 0
        _print([kind, began, None, 0])
        while not _once(connection, method, path, body, headers):
            failed += 1
            connection.close()
            time.sleep(pause_s)
        now = time.monotonic()
        _print([kind, now, now - began, failed])
        time.sleep(pause_s)


def _once(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
) -> bool:
    try:
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        return False
    return answer.status == 200


_printing = threading.Lock()


def _print(line: list[Any]) -> None:
    with _printing:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    _main()
