"""The clients of the soak test: what they send, and which answers are right."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
import torch
from torch import Tensor

from anchorage_client.vectors import from_json, to_json
from app.db.cache import MEMORY_S
from benchmarks.faults.deployment import dice
from benchmarks.faults.truth import ALLOWED, DIMS, PROBES, Anchors, deviation, growth, items

ANCHORS = 60
#: a version of a set exists for about this long
LIFE_S = (0.3, 3.0)
PAUSE_S = 0.02
ANSWER_S = 60

#: contents come from this number of seeds, so that the right answers are computed once
CONTENTS = 12

#: how long after the answer to its deletion another process may still use a set, as
#: docs/explanation/architecture.md says
STALE_S = MEMORY_S


@dataclass(eq=False)
class Version:
    """One content of a set: the probes' translation, and until when a translation may use it."""

    right: Tensor
    #: when its deletion was answered
    deleted_at: float = float("inf")


class Book:
    """What the clients share, and what they have counted."""

    def __init__(self, urls: list[str], sets: int) -> None:
        self.urls = urls
        self.names = [f"set-{number}" for number in range(sets)]
        self.probes = items(PROBES, 3).old
        self.contents: list[tuple[Anchors, Tensor]] = []
        self.statuses: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.compared = self.versions = 0
        self._versions: dict[str, list[Version]] = {name: [] for name in self.names}
        self._lock = threading.Lock()

    def stock(self) -> None:
        """Create the two encoders, and compute what is right for each content."""
        contents = (items(ANCHORS, 50 + number) for number in range(CONTENTS))
        self.contents = [(anchors, anchors.translate(self.probes, 1.0)) for anchors in contents]
        growth(0)
        client = Client(self)
        for name, dim in DIMS.items():
            client.send("POST", "/encoders", {"name": name, "dim": dim})
        client.close()

    def begin(self, name: str, version: Version) -> None:
        """Record that a set is about to be created, so that other clients may see it
        from now on.
        """
        with self._lock:
            self._versions[name].append(version)
            self.versions += 1

    def may_be(self, name: str, sent_at: float) -> list[Version]:
        """The versions that a translation may use that was sent at `sent_at` and is
        answered now.
        """
        with self._lock:
            return [each for each in self._versions[name] if each.deleted_at >= sent_at - STALE_S]

    def deleted(self, name: str) -> None:
        """Record that a deletion was answered: whatever had that name is gone."""
        now = time.monotonic()
        with self._lock:
            for each in self._versions[name]:
                each.deleted_at = min(each.deleted_at, now)
            # Forget versions deleted so long ago that no open request may use them.
            self._versions[name] = [
                each for each in self._versions[name] if each.deleted_at >= now - 2 * ANSWER_S
            ]

    def gone(self, name: str) -> list[Version]:
        """All recorded versions of a set, deleted or not."""
        with self._lock:
            return list(self._versions[name])

    def answered(self, what: str, answer: httpx2.Response) -> None:
        """Count an answer."""
        with self._lock:
            self.statuses[str(answer.status_code)] += 1
        busy = answer.status_code == 503 and "retry-after" in answer.headers
        if answer.status_code >= 500 and not busy:
            self.fault("broken", f"{what}: {answer.status_code} {answer.text[:200]}")

    def fault(self, kind: str, why: str) -> None:
        """Count something that must not happen."""
        with self._lock:
            self.counts[kind] += 1
            if len(self.faults) < 20:
                self.faults.append(f"{kind}: {why}")

    def check(self, name: str, got: Tensor, sent_at: float) -> None:
        """Check that a translation by a set was right at some moment since its request."""
        with self._lock:
            self.compared += 1
        if any(deviation(got, each.right) <= ALLOWED for each in self.may_be(name, sent_at)):
            return
        if any(deviation(got, each.right) <= ALLOWED for each in self.gone(name)):
            self.fault(
                "stale", f"{name}: by a version that was deleted before the request was sent"
            )
        elif any(deviation(got, right) <= ALLOWED for _, right in self.contents):
            self.fault("stale", f"{name}: by a version deleted long ago")
        else:
            self.fault(
                "wrong",
                f"{name}: {min(deviation(got, right) for _, right in self.contents):.2g} "
                "from the nearest version",
            )

    def said(self) -> str:
        """The counts in one line."""
        return (
            f"{sum(self.statuses.values()):,} requests, {self.compared:,} compared, "
            f"{sum(self.counts.values())} faults"
        )


class Client:
    """One client, which chooses an API at random."""

    def __init__(self, book: Book, seed: int | None = None) -> None:
        self.draw: random.Random = dice(threading.get_native_id() if seed is None else seed)
        self._book = book
        self._http = httpx2.Client(timeout=ANSWER_S, trust_env=False)

    def send(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> httpx2.Response | None:
        """The answer of either API; None, and a count, if the connection broke."""
        try:
            answer = self._http.request(method, self.draw.choice(self._book.urls) + path, json=body)
        except httpx2.TransportError as error:
            self._book.fault("cut", f"{method} {path}: {error!r}")
            return None
        self._book.answered(f"{method} {path}", answer)
        return answer

    def close(self) -> None:
        """Close its connections."""
        self._http.close()


class Remaker:
    """Creates one set, lets it exist for a while, deletes it, and creates it again with other
    content.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def run(self, book: Book, ended: threading.Event) -> None:
        """Repeat until the end."""
        client = Client(book)
        while not ended.is_set():
            anchors, right = client.draw.choice(book.contents)
            body = {
                "name": self._name,
                "embeddings": {"old": to_json(anchors.old), "new": to_json(anchors.new)},
            }
            book.begin(self._name, Version(right))
            client.send("POST", "/anchor-sets", body)
            ended.wait(client.draw.uniform(*LIFE_S))
            answer = client.send("DELETE", f"/anchor-sets/{self._name}")
            if answer is not None and answer.is_success:
                book.deleted(self._name)
            ended.wait(client.draw.uniform(0, 0.3))
        client.close()


def translation(book: Book, name: str) -> dict[str, Any]:
    """The body of a translation by a set."""
    body = {
        "source": "old",
        "target": "new",
        "anchor_set": name,
        "method": "graded",
        "options": {"ridge": 1.0},
    }
    return {**body, "vectors": to_json(book.probes), "encoding": "base64"}


def translate(book: Book, ended: threading.Event) -> None:
    """Translate by any set, and compare."""
    client = Client(book)
    while not ended.wait(PAUSE_S):
        name = client.draw.choice(book.names)
        sent_at = time.monotonic()
        answer = client.send("POST", "/translate", translation(book, name))
        if answer is not None and answer.status_code == 200:
            book.check(name, torch.from_numpy(from_json(answer.json()["vectors"])), sent_at)
    client.close()


def cancel_jobs(book: Book, ended: threading.Event) -> None:
    """Queue bootstraps, cancel every other one at some moment, wait for their end, and delete the
    sets that they made.
    """
    client, number = Client(book), 0
    while not ended.wait(0.5):
        number += 1
        name = f"grown-{number}"
        answer = client.send("POST", "/bootstrap", {"name": name, **growth(0).body})
        if answer is None or answer.status_code != 202:
            continue
        job = answer.json()["id"]
        ended.wait(client.draw.uniform(0, 2))
        if number % 2:
            client.send("POST", f"/jobs/{job}/cancel")
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline and not ended.wait(0.2):
            found = client.send("GET", f"/jobs/{job}")
            if (
                found is not None
                and found.status_code == 200
                and found.json()["finished_at"] is not None
            ):
                break
        client.send("DELETE", f"/anchor-sets/{name}")
    client.close()


def hang_up(book: Book, ended: threading.Event) -> None:
    """Close connections in the middle of a head, of a body, after the request, and in the middle of
    the answer.
    """
    draw = dice(threading.get_native_id())
    while not ended.wait(0.1):
        body = json.dumps(translation(book, draw.choice(book.names))).encode()
        lines = (
            "POST /translate HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        head = "\r\n".join([*lines, "", ""]).encode()
        whole = head + body
        parts = urlsplit(draw.choice(book.urls))
        try:
            with socket.create_connection(
                (parts.hostname or "", parts.port or 0), ANSWER_S
            ) as connection:
                cut = draw.choice((len(head) // 2, len(head) + len(body) // 2, len(whole)))
                connection.sendall(whole[:cut])
                if cut == len(whole) and draw.random() < 0.5:
                    connection.recv(draw.choice((1, 100)))
                # Close with a reset, so that nothing under way is read.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        except OSError as error:
            book.fault("cut", f"a new connection: {error!r}")
        else:
            book.statuses["hung up"] += 1
