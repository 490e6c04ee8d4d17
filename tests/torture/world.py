"""A store under torture: clients write and saboteurs kill, while a service migrates it."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from tests.torture.service import DIMS, SOURCE_DIM, TARGET_DIM, Migration, Service
from tests.torture.tally import Tally

CLIENTS = 4


class Row(NamedTuple):
    """A row as its client wrote it, and as the store has it. None: there is no such row.

    moved  whether its key is another one since its vector was written
    """

    id: Any
    expected: dict[str, Any] | None
    found: dict[str, Any] | None
    wrote: Any
    vector: Any
    moved: bool = False


class World(ABC):
    """A store, its clients and its saboteurs, which are threads of this process."""

    #: kind of the store, which is its name as well, and its address
    kind: str
    url: str
    #: how much a vector may differ from its client's, and from a translation of that
    tolerances = (0.0, 1e-4)
    service: Service

    def __init__(self, tally: Tally, seed: int, rows: int) -> None:
        self.tally, self.seed, self.rows = tally, seed, rows
        #: of the vectors that clients are believed to write
        self.dim = SOURCE_DIM
        #: odd during a switch
        self.switches = 0
        #: clients of some stores delete nothing between a cutover and a rollback
        self.may_delete = True
        self.end = threading.Event()
        #: a client holds its lock while it writes; who holds all, is alone
        self.locks = [threading.Lock() for _ in range(CLIENTS)]
        self.threads: list[threading.Thread] = []

    @abstractmethod
    def begin(self, pace: float) -> None:
        """Register the store, and start clients and saboteurs. pace: 1, or less in a short run."""

    @abstractmethod
    def read(self) -> Iterable[Row]:
        """Return all rows that are not in doubt."""

    @contextmanager
    def switch(self, migration: Migration, state: str) -> Iterator[None]:
        """A migration goes to this state meanwhile."""
        self.switches += 1
        yield
        self.switches += 1

    def check(self, where: str) -> None:
        """Compare all rows."""
        self.compare(self.read(), where)

    def check_all(self) -> None:
        """Compare everything after a migration; then take what is there for what was written."""
        self.compare(self.read(), "after each migration")

    def resolve(self) -> None:
        """Undo what a step has refused. Nothing, unless a store says otherwise."""
        return

    @abstractmethod
    def close(self) -> None:
        """Delete the store."""

    def repeat(self, name: str, every_s: float, act: Callable[[random.Random], None]) -> None:
        """Start a thread that does this after random pauses until the end."""
        draw = random.Random(f"{self.seed} {self.kind} {name}")

        def run() -> None:
            while not self.end.wait(draw.expovariate(1 / every_s)):
                try:
                    act(draw)
                except Exception as error:
                    self.tally.fault(name, f"{type(error).__name__}: {error}")

        self.threads.append(threading.Thread(target=run, name=name))
        self.threads[-1].start()

    @contextmanager
    def alone(self, first: int = 0) -> Iterator[None]:
        """Keep all clients from this one on waiting between their writes."""
        with ExitStack() as held:
            for lock in self.locks[first:]:
                held.enter_context(lock)
            yield

    def other_dim(self) -> None:
        """A switch may have been: write vectors of the other encoder."""
        self.dim = SOURCE_DIM + TARGET_DIM - self.dim

    def translate(self, vectors: np.ndarray) -> np.ndarray:
        return self.service.translate(vectors)

    def compare(self, rows: Iterable[Row], where: str) -> None:
        """Count rows that are missing, extra or wrong.

        A vector is its client's, or the translation of that. A row that got a new key after a
        cutover has its vector translated back by the rollback, and there again by the next cutover.
        """
        near, near_translated = self.tolerances
        count = 0
        changed: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for row in rows:
            count += 1
            if row.found is None:
                self.tally.fault("missing", f"{where}: row {row.id} {row.expected}")
            elif row.expected is None:
                self.tally.fault("extra", f"{where}: row {row.id} {row.found}")
            elif row.found != row.expected:
                self.tally.fault("wrong", f"{where}: {row.found} instead of {row.expected}")
            elif row.wrote is None or row.vector is None:
                if row.wrote is not row.vector:
                    detail = f"row {row.id} has the vector {row.vector} for {row.wrote}"
                    self.tally.fault("wrong", f"{where}: {detail}")
            elif len(row.wrote) != len(row.vector) or row.moved:
                changed[len(row.wrote), len(row.vector)].append(row)
            elif not np.allclose(row.wrote, row.vector, rtol=0, atol=near):
                self.tally.fault("wrong", f"{where}: row {row.id} has another vector")
        for group in changed.values():
            wanted = np.asarray([row.wrote for row in group], np.float32)
            found = np.asarray([row.vector for row in group], np.float32)
            moved = np.asarray([row.moved for row in group])
            right = np.zeros(len(group), bool)
            for times in range(4):
                if wanted.shape == found.shape:
                    is_near = np.abs(wanted - found).max(1) <= near_translated
                    right |= is_near & (moved | (times == 1))
                if right.all():
                    break
                wanted = self.translate(wanted)
            for place in np.flatnonzero(~right):
                detail = f"row {group[place].id} has another vector, which is no translation"
                self.tally.fault("wrong", f"{where}: {detail}")
        self.tally.count("rows compared", f"{self.kind} {where}", count)


def torture(world: World, service: Service, *, seconds: float, kills: float) -> None:
    """Migrate a store there and back for about this time; at least one whole migration.

    kills  share of the steps in which the API dies, beside each `finish`
    """
    draw = random.Random(f"{world.seed} {world.kind} rounds")
    world.service = service
    pace = min(1.0, max(0.25, seconds / 120))
    until, owner, number = time.monotonic() + seconds, "first", 0
    try:
        world.begin(pace)
        world.repeat("kills of workers", 8, lambda draw: service.kill_worker())
        while number == 0 or time.monotonic() < until:
            [target] = set(DIMS) - {owner}
            abandons = number % 3 == 2
            _migrate(world, target, draw, kills, fill_s=12 * pace, abandons=abandons)
            owner = owner if abandons else target
            number += 1
    finally:
        world.end.set()
        for thread in world.threads:
            thread.join()
    world.check_all()


def _migrate(
    world: World, target: str, draw: random.Random, kills: float, *, fill_s: float, abandons: bool
) -> None:
    """One migration: run, cutover, rollback, cutover and finish, or abandon instead."""
    tally, kind = world.tally, world.kind
    migration = Migration(
        world.service,
        kind,
        target,
        world.resolve,
        rows_per_second=max(30, world.rows / fill_s),
        batch=20,
    )
    tally.say(f"{kind} to {target}: run")
    migration.step_to("filled")
    states = ["cut-over", "rolled-back", *(["abandoned"] if abandons else ["cut-over", "finished"])]
    for place, state in enumerate(states):
        dies_after_s = None
        if state == "finished" or draw.random() < kills:
            dies_after_s = draw.uniform(0.0, 0.3)
        with world.switch(migration, state):
            migration.step_to(state, dies_after_s)
            world.may_delete = place != 0
        world.check(f"after {state}")
        tally.say(f"{kind} {state}")
        tally.count("steps", f"{kind} {state}")
        time.sleep(draw.uniform(0.3, fill_s / 2))
    world.resolve()
    with world.alone():
        world.check_all()
