"""The service that migrates a tortured store, and one migration by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from anchorage_client import AnchorageError, Client, UnavailableError
from benchmarks.faults.deployment import Deployment
from tests.torture.tally import Tally
from tests.waiting import slack

KILL_EVERY_S = 8.0
#: a migration that gets no further for this time is a dead end
PATIENCE_S = 180.0

SOURCE_DIM, TARGET_DIM, LATENT = 16, 24, 12
DIMS = {"first": SOURCE_DIM, "second": TARGET_DIM}
NAME_OF_DIM = {dim: name for name, dim in DIMS.items()}
_DRAW = np.random.default_rng(11)
MAPS = {name: _DRAW.normal(size=(LATENT, dim)) for name, dim in DIMS.items()}
ANCHORS = _DRAW.normal(size=(300, LATENT))

#: the step that leads to a state
STEPS = {
    "filled": "run",
    "cut-over": "cutover",
    "rolled-back": "rollback",
    "finished": "finish",
    "abandoned": "abandon",
}


def vector_of(seed: int, dim: int) -> np.ndarray:
    """A unit vector by the encoder of this dimension, of made-up content."""
    return unit(np.random.default_rng(seed).normal(size=LATENT) @ MAPS[NAME_OF_DIM[dim]])


def unit(vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector, axis=-1, keepdims=True)
    return np.asarray(vector / length, dtype=np.float32)


class Service:
    """The client of a service, and the service's processes, if it has some of its own to kill."""

    def __init__(
        self,
        url: str,
        tally: Tally,
        processes: Deployment | None = None,
        endpoint: str | None = None,
    ) -> None:
        self.client = Client(url, timeout=120, retries=12)
        #: URL of the encoders' endpoint: rows are embedded from their texts
        self.endpoint = endpoint
        self.tally, self._processes = tally, processes
        self._next_kill = 0.0

    def register(self, store: str, collection: str, **fields: Any) -> None:
        """Create both encoders and their anchors, and register a store by the name of its kind."""
        for name, dim in DIMS.items():
            made: dict[str, Any] = {"kind": "external", "dim": dim}
            if self.endpoint:
                options = {"url": self.endpoint}
                made = {"kind": "openai", "model": f"{name}:{dim}", "options": options}
            self.client.encoders.create(name, **made)
        pairs = {name: unit(ANCHORS @ MAPS[name]) for name in DIMS}
        self.client.anchor_sets.create("anchors", embeddings=pairs)
        # Without it, each plan would leave out other anchors as foreign to its own sample of the
        # store, and no translation outside the migration would equal its own.
        sample = np.stack([vector_of(number, SOURCE_DIM) for number in range(500)])
        self.client.anchor_sets.put_sample("anchors", "first", sample)
        if self.endpoint:
            fields.setdefault("text_field", "text")
        self.client.stores.create(
            store, kind=store, address=store, encoder="first", collection=collection, **fields
        )

    def translate(self, vectors: np.ndarray) -> np.ndarray:
        """Translate vectors to the other encoder, which their dimension tells."""
        source = NAME_OF_DIM[vectors.shape[1]]
        [target] = set(DIMS) - {source}
        if not len(vectors):  # a restored migration may have nothing to translate
            return np.zeros((0, DIMS[target]), np.float32)
        pair = self.client.pair(source, target, "anchors")
        return np.asarray(pair.translate(vectors).vectors, np.float32)

    def kill_worker(self) -> None:
        """SIGKILL a worker, and start it again without waiting.

        Only if all are ready, and not too often: after five lost workers, a job is given up.
        """
        workers = self._processes.workers if self._processes else []
        if workers and all(each.ready() for each in workers) and time.monotonic() > self._next_kill:
            self._next_kill = time.monotonic() + KILL_EVERY_S * slack()
            workers[0].kill()
            self.tally.count("kills", "worker")
            workers[0].start()
            workers.append(workers.pop(0))

    def kill_during(self, act: Callable[[], Any], after_s: float) -> None:
        """Kill the API while it does this, and start it again. The answer, if any, is lost."""
        if self._processes is None:
            act()
            return

        def try_once() -> None:
            try:
                act()
            except UnavailableError:
                self.tally.count("kills", "api within a step")
            except AnchorageError as error:
                self.tally.count("refused steps", error.code)

        [api] = self._processes.apis
        thread = threading.Thread(target=try_once)
        thread.start()
        time.sleep(after_s)
        api.kill()
        api.start()
        self.tally.count("kills", "api")
        thread.join()
        api.wait_ready()


class Migration:
    """One migration, and the way to each of its states whatever happens meanwhile."""

    def __init__(
        self, service: Service, store: str, target: str, resolve: Callable[[], None], **plan: Any
    ) -> None:
        self._service, self._resolve = service, resolve
        create = service.client.migrations.create
        plan |= {"fill": "embed"} if service.endpoint else {"anchor_set": "anchors"}
        self._migration = create(store=store, target=target, **plan)

    def job(self, action: str) -> None:
        """Start a job and wait for its end, whatever it is."""
        try:
            getattr(self._migration, action)(as_job=True).wait(timeout=PATIENCE_S * slack())
        except AnchorageError as error:
            self._refused(action, error)

    def step_to(self, state: str, dies_after_s: float | None = None) -> None:
        """Take steps until this state. dies_after_s: the API dies so long after the last begins."""
        action = STEPS[state]
        until = time.monotonic() + PATIENCE_S * slack()
        while (now := self._migration.refresh()).state != state:
            assert time.monotonic() < until, f"a dead end before {state}: {now.data}"
            step = getattr(now, action)
            try:
                if now.next in ([], ["pause"]):
                    time.sleep(0.1)
                elif "run" in now.next and now.state != "filled":
                    self.job("run")
                elif action == "cutover" and "verify" in now.next and not self._is_verified():
                    self.job("verify")
                    if not self._is_verified():
                        found = str(self._migration.data["found"].get("verify"))
                        self._refused("verify", AnchorageError(None, {"detail": found}))
                elif dies_after_s is not None:
                    after_s, dies_after_s = dies_after_s, None
                    self._service.kill_during(step, after_s)
                else:
                    step()
            except AnchorageError as error:
                self._refused(action, error)

    def _is_verified(self) -> bool:
        found = self._migration.refresh().data["found"]
        return bool(found.get("verify", {}).get("passed"))

    def _refused(self, action: str, error: AnchorageError) -> None:
        self._service.tally.count("refused steps", f"{action} {error.code}")
        self._service.tally.say(f"{action}: {str(error)[:300]}")
        self._resolve()
        time.sleep(0.3)
