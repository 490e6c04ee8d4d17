"""Clients that behave as documented.

They wait as Retry-After says, repeat a creating request, and count every answer.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx2

#: a client that is asked to return does so for this long
PATIENCE_S = 180

#: longest wait for one answer, generous because the machine may be busy starting processes
ANSWER_S = 60

#: pause between two looks of a balancer at an API's /readyz
LOOK_S = 0.2


@dataclass
class Tally:
    """Counts of all threads together.

    refused  4xx
    busy     503 with Retry-After
    broken   any other 5xx
    cut      connections that broke because the fault killed the API: the client sends again
    dropped  other broken connections, and requests that never got the right answer
    lost     jobs that did not succeed, and answered resources that are missing or incomplete
    twice    jobs and creating requests with more or fewer effects than one
    wrong    answers with wrong vectors
    """

    requests: int = 0
    ok: int = 0
    refused: int = 0
    busy: int = 0
    broken: int = 0
    cut: int = 0
    dropped: int = 0
    lost: int = 0
    twice: int = 0
    wrong: int = 0
    compared: int = 0
    largest_deviation: float = 0.0
    codes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, why: str | None = None, times: int = 1) -> None:
        """Count something. `why` is recorded for what must not happen."""
        with self._lock:
            setattr(self, name, getattr(self, name) + times)
            if why is not None and len(self.faults) < 20:
                self.faults.append(f"{name}: {why}")

    def answered(self, method: str, path: str, answer: httpx2.Response) -> None:
        """Count an answer by its status."""
        self.add("requests")
        if answer.is_success:
            self.add("ok")
            return
        code = (
            answer.json().get("code", "")
            if "json" in answer.headers.get("content-type", "")
            else answer.text[:50]
        )
        with self._lock:
            self.codes[f"{answer.status_code} {code}"] += 1
        if answer.status_code < 500:
            self.add("refused")
        elif answer.status_code == 503 and answer.headers.get("retry-after", "").isdecimal():
            self.add("busy")
        else:
            self.add("broken", f"{method} {path}: {answer.status_code} {answer.text[:300]}")

    def deviates(self, what: str, deviation: float, allowed: float) -> None:
        """Count a comparison of vectors."""
        with self._lock:
            self.compared += 1
            self.largest_deviation = max(self.largest_deviation, deviation)
        if not deviation <= allowed:
            self.add("wrong", f"{what}: {deviation:.2g} from the right vectors")


class Balancer:
    """Takes the APIs in turn, those whose /readyz answers 200 first, as load balancers do."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._ready = dict.fromkeys(urls, True)
        self._turn = count()

    def order(self) -> list[str]:
        """The URLs to try, one after the other."""
        start = next(self._turn)
        turned = [self._urls[(start + shift) % len(self._urls)] for shift in range(len(self._urls))]
        return sorted(turned, key=lambda url: not self._ready[url])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at each API's /readyz from time to time, until the end."""
        ended = threading.Event()

        def watch(url: str) -> None:
            with httpx2.Client(timeout=5, trust_env=False) as http:
                while not ended.wait(LOOK_S):
                    try:
                        self._ready[url] = http.get(f"{url}/readyz").status_code == 200
                    except httpx2.TransportError:
                        self._ready[url] = False

        threads = [threading.Thread(target=watch, args=(url,), daemon=True) for url in self._urls]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()


class Client:
    """One client with its own connections. Use it from one thread."""

    def __init__(
        self,
        balancer: Balancer,
        tally: Tally,
        *,
        apis_die: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._balancer = balancer
        self._apis_die = apis_die
        self._patience_s = patience_s
        self._http = httpx2.Client(timeout=ANSWER_S, trust_env=False)
        self.tally = tally

    def send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        expect: int = 200,
        again: bool = False,
    ) -> dict[str, Any] | None:
        """The answer that this request must get in the end, after all waits of Retry-After; None if
        it does not. A repeated creation may find that an earlier try has its name; `again`: it was
        tried before.
        """
        tries = int(again)
        deadline = time.monotonic() + self._patience_s
        last = "no answer"
        while time.monotonic() < deadline:
            tries += 1
            try:
                answer = self.once(method, path, body)
            except httpx2.TransportError as error:
                last = f"{type(error).__name__}: {error}"
                self.tally.add("requests")
                if not self._apis_die:
                    break
                self.tally.add("cut")
                time.sleep(0.2)
                continue
            last = f"{answer.status_code} {answer.text[:200]}"
            pause = answer.headers.get("retry-after", "")
            if answer.status_code == expect:
                return answer.json() if answer.content else {}
            if tries > 1 and answer.status_code == 409 and answer.json()["code"] == "name-taken":
                return {}
            if answer.status_code not in (409, 503) or not pause.isdecimal():
                break
            time.sleep(float(pause))
        self.tally.add("dropped", f"{method} {path}: {last}")
        return None

    def once(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
        """One try, counted. Asks the next API if it cannot connect; raises any other
        TransportError.
        """
        refused: httpx2.ConnectError | None = None
        for url in self._balancer.order():
            try:
                answer = self._http.request(method, url + path, json=body)
            except httpx2.ConnectError as error:
                refused = error
                continue
            self.tally.answered(method, path, answer)
            return answer
        assert refused is not None
        raise refused

    def close(self) -> None:
        """Close its connections."""
        self._http.close()


Step = Callable[[Client], None]


class Load:
    """Client threads that work through steps at a given pace."""

    def __init__(
        self,
        steps: Iterable[Step],
        balancer: Balancer,
        tally: Tally,
        *,
        threads: int = 8,
        per_second: float,
    ) -> None:
        self._steps = iter(steps)
        self._balancer = balancer
        self._tally = tally
        self._pause_s = 1 / per_second
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]
        self._due = 0.0
        self.begun = 0

    def start(self) -> None:
        """Start the clients."""
        self._due = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin no further step."""
        self._ended.set()

    def wait_for(self, steps: int) -> None:
        """Wait until `steps` steps have begun, or all that there are."""
        while self.begun < steps and any(thread.is_alive() for thread in self._threads):
            time.sleep(0.02)

    def join(self) -> None:
        """Wait until every step that has begun is answered."""
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        client = Client(self._balancer, self._tally)
        while (step := self._next()) is not None:
            try:
                step(client)
            except Exception as error:
                self._tally.add("dropped", f"the client failed: {error!r}")
        client.close()

    def _next(self) -> Step | None:
        with self._lock:
            if self._ended.is_set():
                return None
            step = next(self._steps, None)
            self.begun += step is not None
            self._due += self._pause_s
            due = self._due
        time.sleep(max(0.0, due - time.monotonic()))
        return step
