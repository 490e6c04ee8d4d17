"""The real service in processes of its own, which a saboteur kills, and one migration over HTTP."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from benchmarks.faults.deployment import Api, RedisServer, Worker
from tests.torture.tally import Tally
from tests.waiting import slack

#: a killed process loses its jobs after this time
LEASE_S = 3
KILL_EVERY_S = 8.0
#: a migration that gets no further for this time is a dead end
PATIENCE_S = 180.0

SOURCE_DIM, TARGET_DIM, LATENT = 16, 24, 12
DIMS = {"first": SOURCE_DIM, "second": TARGET_DIM}
NAME_OF_DIM = {dim: name for name, dim in DIMS.items()}
_DRAW = np.random.default_rng(11)
MAPS = {name: _DRAW.normal(size=(LATENT, dim)) for name, dim in DIMS.items()}
ANCHORS = _DRAW.normal(size=(300, LATENT))

#: sends method, path and body; returns status and JSON
Request = Callable[[str, str, Any], tuple[int, Any]]


def vector_of(seed: int, dim: int) -> np.ndarray:
    """A unit vector by the encoder of this dimension, of made-up content."""
    return unit(np.random.default_rng(seed).normal(size=LATENT) @ MAPS[NAME_OF_DIM[dim]])


def unit(vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector, axis=-1, keepdims=True)
    return np.asarray(vector / length, dtype=np.float32)


class Refused(Exception):
    """A problem document."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status, self.code = status, str(problem.get("code"))
        super().__init__(f"{status} {problem.get('code')}: {problem.get('detail')}")


class Service:
    """The HTTP API, by whatever sends its requests."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def call(self, method: str, path: str, **body: Any) -> Any:
        """Return the JSON of the answer. Raises Refused."""
        status, found = self._request(method, path, body or None)
        if status >= 400:
            raise Refused(status, found)
        return found

    def register(self) -> None:
        """Create both encoders and their anchors."""
        for name, dim in DIMS.items():
            self.call("POST", "/encoders", name=name, kind="external", dim=dim)
        pairs = {name: unit(ANCHORS @ MAPS[name]).tolist() for name in DIMS}
        self.call("POST", "/anchor-sets", name="anchors", embeddings=pairs)
        # Without it, each plan would leave out other anchors as foreign to its own sample of the
        # store, and no translation outside the migration would equal its own.
        sample = [vector_of(number, SOURCE_DIM).tolist() for number in range(500)]
        self.call("PUT", "/anchor-sets/anchors/samples/first", vectors=sample)

    def connect(self, kind: str, address: str, name: str, collection: str, **fields: Any) -> None:
        """Register a store."""
        body = {"kind": kind, "address": address, "name": name, "collection": collection, **fields}
        self.call("POST", "/stores", encoder="first", **body)

    def translate(self, vectors: np.ndarray) -> np.ndarray:
        """Translate vectors to the other encoder, which their dimension tells."""
        source = NAME_OF_DIM[vectors.shape[1]]
        [target] = set(DIMS) - {source}
        if not len(vectors):
            return np.zeros((0, DIMS[target]), np.float32)
        names = {"source": source, "target": target, "anchor_set": "anchors"}
        parts = [
            self.call("POST", "/translate", vectors=part.tolist(), **names)["vectors"]
            for part in np.array_split(vectors, len(vectors) // 4000 + 1)
        ]
        return np.concatenate([np.asarray(part, np.float32) for part in parts])


class Processes(Service):
    """An API and workers, with a Redis and a database of their own."""

    def __init__(
        self, folder: Path, database: str, stores: Mapping[str, str], tally: Tally, workers: int = 2
    ) -> None:
        super().__init__(self._send)
        self._tally = tally
        self._next_kill = 0.0
        self._redis = RedisServer(folder)
        environment = {
            **{name: each for name, each in os.environ.items() if "ANCHORAGE_" not in name},
            "OMP_NUM_THREADS": "1",
            "ANCHORAGE_DATA_DIR": str(folder / "data"),
            "ANCHORAGE_DATABASE_URL": database,
            "ANCHORAGE_REDIS_URL": self._redis.url,
            "ANCHORAGE_LEASE_S": str(LEASE_S),
            "ANCHORAGE_THREADS": "1",
            "ANCHORAGE_STORES": json.dumps(stores),
        }
        self.api = Api(0, folder, environment)
        self.workers = [Worker(number, folder, environment) for number in range(workers)]
        self._http = httpx2.Client(base_url=self.api.url, timeout=120, trust_env=False)

    @contextmanager
    def running(self) -> Iterator[Processes]:
        """Start all processes, and end them."""
        try:
            for process in (self._redis, self.api, *self.workers):
                process.start()
            for process in (self._redis, self.api, *self.workers):
                process.wait_ready()
            yield self
        finally:
            self._http.close()
            for process in (self.api, *self.workers, self._redis):
                process.kill()
            self._redis.client.close()

    def _send(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        answer = self._http.request(method, path, json=body)
        return answer.status_code, answer.json() if answer.content else {}

    def translate(self, vectors: np.ndarray) -> np.ndarray:
        """Translate, also while the API is being started again."""
        while True:
            try:
                return super().translate(vectors)
            except (httpx2.TransportError, Refused) as error:
                if isinstance(error, Refused) and error.status != 503:
                    raise
                time.sleep(0.2)

    def kill_worker(self) -> None:
        """SIGKILL a worker, and start it again without waiting.

        Only if all are ready, and not too often: after five lost workers, a job is given up.
        """
        ready = [each for each in self.workers if each.ready()]
        if len(ready) == len(self.workers) and time.monotonic() > self._next_kill:
            self._next_kill = time.monotonic() + KILL_EVERY_S * slack()
            ready[0].kill()
            self._tally.count("kills", "worker")
            ready[0].start()
            self.workers.append(self.workers.pop(0))

    def keep_killing(self, end: threading.Event, every_s: float) -> None:
        """Kill workers until the end."""
        while not end.wait(every_s):
            self.kill_worker()

    def call_and_kill(self, path: str, after_s: float) -> None:
        """POST, kill the API meanwhile, and start it again. The answer, if any, is lost."""

        def post() -> None:
            try:
                self._http.request("POST", path)
            except httpx2.TransportError:
                self._tally.count("kills", "api within a step")

        thread = threading.Thread(target=post)
        thread.start()
        time.sleep(after_s)
        self.api.kill()
        thread.join()
        self._tally.count("kills", "api")
        self.api.start()
        self.api.wait_ready()


class Migration:
    """One migration, and the way to each of its states whatever happens meanwhile."""

    def __init__(
        self,
        service: Service,
        store: str,
        target: str,
        tally: Tally,
        resolve: Callable[[], None] = lambda: None,
        **plan: Any,
    ) -> None:
        self._service, self._tally, self._resolve = service, tally, resolve
        body = {"store": store, "target": target, "anchor_set": "anchors", **plan}
        self.id = self._patiently(lambda: service.call("POST", "/migrations", **body))["id"]

    @property
    def path(self) -> str:
        return f"/migrations/{self.id}"

    def now(self) -> Any:
        return self._patiently(lambda: self._service.call("GET", self.path))

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Repeat while the API is away or busy."""
        until = time.monotonic() + PATIENCE_S * slack()
        while True:
            try:
                return call()
            except httpx2.TransportError:
                self._tally.count("refused steps", "no API")
            except Refused as error:
                if error.status not in (409, 422, 503):
                    raise
                self._refused("plan", error)
            if time.monotonic() > until:
                raise AssertionError("the service is away")
            time.sleep(0.3)

    def _refused(self, step: str, error: Refused) -> None:
        self._tally.count("refused steps", f"{step} {error.code}")
        if error.code in ("store-changed", "store-unsupported", "below-estimate"):
            self._tally.say(f"{step}: {str(error)[:300]}")
            self._resolve()

    def job(self, action: str) -> None:
        """Start a job and wait for its end, whatever it is."""
        self._service.call("POST", f"{self.path}/{action}")
        self.wait()

    def wait(self) -> None:
        """Wait until no job works on it."""
        until = time.monotonic() + PATIENCE_S * slack()
        while True:
            now = self.now()
            if now["next"] and now["next"] != ["pause"]:
                break
            assert time.monotonic() < until, f"a job that does not end: {now}"
            time.sleep(0.1)
        if now["error"]:
            self._refused("job", Refused(0, now["error"]))

    def step_to(self, state: str, within: Callable[[str], None] | None = None) -> None:
        """Take steps until this state. `within`: takes the last step in its own way, once."""
        last = {"cut-over": "cutover", "rolled-back": "rollback"}
        step = last.get(state, {"finished": "finish", "abandoned": "abandon"}.get(state, state))
        until = time.monotonic() + PATIENCE_S * slack()
        while (now := self.now())["state"] != state:
            assert time.monotonic() < until, f"a dead end before {state}: {now}"
            try:
                if now["next"] in ([], ["pause"]):
                    self.wait()
                elif state == "filled" or ("run" in now["next"] and now["state"] != "filled"):
                    self.job("run")
                elif step == "cutover" and "verify" in now["next"] and not is_verified(now):
                    self.job("verify")
                elif within is not None:
                    taken, within = within, None
                    taken(f"{self.path}/{step}")
                else:
                    self._service.call("POST", f"{self.path}/{step}")
            except httpx2.TransportError:
                time.sleep(0.3)
            except Refused as error:
                self._refused(step, error)
                time.sleep(0.3)

    def tour(
        self,
        draw: random.Random,
        kill: Callable[[str, float], None] | None,
        around: Callable[[str], AbstractContextManager[None]],
        *,
        kills: float,
        abandon: bool,
        pause_s: float,
    ) -> None:
        """Cut over, roll back, and cut over and finish, or abandon instead.

        kill    takes a step, and kills the API within it; kills: the share of such steps
        around  a context for each step to a state
        """
        self.step_to("filled")
        last = ["abandoned"] if abandon else ["cut-over", "finished"]
        for state in ("cut-over", "rolled-back", *last):
            within = None
            if kill and (state == "finished" or draw.random() < kills):
                within = partial(kill, after_s=draw.uniform(0.0, 0.3))
            with around(state):
                self.step_to(state, within)
            self._tally.say(state)
            self._tally.count("steps", state)
            time.sleep(draw.uniform(0.3, pause_s))


def is_verified(migration: Any) -> bool:
    return bool(migration["found"].get("verify", {}).get("passed"))
