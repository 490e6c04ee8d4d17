"""The torture of a table in PostgreSQL: clients, saboteurs, dumps, and rounds of migrations."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from app.errors import StoreChanged, StoreUnsupported
from app.stores.pgvector import PgvectorStore
from app.stores.port import StoreLocation
from tests.pgvector_server import PgvectorServer
from tests.torture.definitions import Alterations, compare_definitions, leftovers
from tests.torture.pgvector import Client, World, compare, compare_journals, create, rebase
from tests.torture.service import DIMS, Migration, Processes
from tests.torture.tally import Tally
from tests.waiting import slack

CLIENTS = 4


class Saboteur(threading.Thread):
    """Kills workers, and backends of clients and of the service."""

    def __init__(self, world: World, service: Processes, every_s: float) -> None:
        super().__init__(name="saboteur")
        self._world, self._service, self._every_s = world, service, every_s
        self._random = random.Random(f"{world.seed} saboteur")

    def run(self) -> None:
        while not self._world.end.wait(self._random.expovariate(1 / self._every_s) * slack() / 2):
            what = self._random.choice(("worker", "client", "client", "service"))
            if what == "worker":
                self._service.kill_worker()
                continue
            with self._world.connect(autocommit=True) as connection:
                pids = list(self._world.backends.values())
                if what == "service":
                    pids = [
                        row[0]
                        for row in connection.execute(
                            "SELECT pid FROM pg_stat_activity WHERE application_name = 'anchorage' "
                            "AND datname = current_database()"
                        )
                    ]
                if pids:
                    pid = self._random.choice(pids)
                    connection.execute("SELECT pg_terminate_backend(%s)", [pid])
                    self._world.tally.count("kills", f"backend of a {what}")


class Dumps(threading.Thread):
    """Dumps the database, restores it, and goes on with the migration of the restored one."""

    def __init__(
        self, world: World, server: PgvectorServer, folder: Path, service: Processes, every_s: float
    ) -> None:
        super().__init__(name="dumps")
        self._world, self._server, self._folder = world, server, folder
        self._service, self._every_s = service, every_s
        self._random = random.Random(f"{world.seed} dumps")
        self._binaries = Path(server._initdb).parent
        self.gone_on = 0

    def run(self) -> None:
        number = 0
        while not self._world.end.wait(self._random.uniform(0, 2 * self._every_s)):
            number += 1
            try:
                self.dump(f"restored_{number}")
            except Exception as error:
                self._world.tally.fault("dump", f"{type(error).__name__}: {error}")

    def dump(self, name: str) -> None:
        """Dump, restore, compare, and take a random step."""
        world, file = self._world, self._folder / name
        at_switch, switches = world.switching, world.switches
        self._server.execute(f"CREATE DATABASE {name}")
        url = world.url.replace("/shop?", f"/{name}?")
        try:
            self._command("pg_dump", "-Fc", "-f", str(file), world.url)
            self._command("pg_restore", "-1", "-e", "-d", url, str(file))
        except RuntimeError as error:
            if not at_switch and world.switches == switches:
                raise
            # docs/how-to/pgvector.md: no dump may start in the moment of a switch
            world.tally.count("dumps", "failed, at a switch")
            world.tally.say(f"dump during a switch: {str(error)[-200:]}")
        else:
            world.tally.count("dumps", "restored")
            compare(url, world.tally, self._service.translate, "restored")
            compare_definitions(url, world.tally, "restored", unvalidated=True)
            self._go_on(url)
        finally:
            self._server.execute(f"DROP DATABASE {name} WITH (FORCE)")
            file.unlink(missing_ok=True)

    def _command(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.strip()[-500:]}")

    def _go_on(self, url: str) -> None:
        with psycopg.connect(url) as connection:
            row = connection.execute(
                "SELECT substr(q.relname, 11, 8), n.relname = 'docs', a.atttypmod FROM pg_class q "
                "JOIN pg_class h ON h.relname IN (replace(q.relname, 'queue', 'new'), "
                "replace(q.relname, 'queue', 'old')) JOIN pg_class n ON n.oid = CASE "
                "WHEN h.relname ~ 'new$' THEN h.oid ELSE 'live.docs'::regclass END "
                "JOIN pg_attribute a ON a.attrelid = n.oid AND a.attname = 'embedding' "
                "WHERE q.relname ~ '^anchorage_[0-9a-f]{8}_queue$'"
            ).fetchone()
        if row is None:
            return
        tag, is_cut_over, dim = row
        steps = ("rollback", "finish") if is_cut_over else ("abandon",)
        step = self._random.choice(steps)
        store = PgvectorStore(StoreLocation("pgvector", url, "live.docs", vector_field="embedding"))
        refusal = ""
        try:
            migration = store.migration(tag, dim)
            if step == "rollback":
                migration.rollback(lambda ids, vectors: self._service.translate(vectors))
            else:
                getattr(migration, step)()
        except (StoreChanged, StoreUnsupported) as error:  # a client altered or published a table
            refusal = f" refused: {error.code}"
            self._world.tally.say(f"restored, {step}: {str(error)[:200]}")
        finally:
            store.close()
        compare(url, self._world.tally, self._service.translate, f"restored, {step}")
        compare_definitions(url, self._world.tally, f"restored, {step}", unvalidated=bool(refusal))
        if not refusal and step != "rollback" and (names := leftovers(url)):
            self._world.tally.fault("leftovers", f"after a restore and {step}: {names}")
        self._world.tally.count("dumps", f"went on by {step}{refusal}")
        self.gone_on += 1


class Watch(threading.Thread):
    """Compares all rows all the time."""

    def __init__(self, world: World, translate: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__(name="watch")
        self._world, self._translate = world, translate

    def run(self) -> None:
        while not self._world.end.wait(1.0):
            try:
                compare(self._world.url, self._world.tally, self._translate, "while clients write")
            except Exception as error:
                self._world.tally.fault("watch", f"{type(error).__name__}: {error}")


class Rounds:
    """Migrations of one table there and back, until the time is over."""

    def __init__(
        self, world: World, service: Processes, alterations: Alterations, kills: float
    ) -> None:
        self._world, self._service, self._alterations = world, service, alterations
        self._kills = kills
        self._random = random.Random(f"{world.seed} rounds")
        self._owner = "first"

    def round(self, fill_s: float, *, abandon: bool) -> None:
        """One migration: run, cutover, rollback, cutover and finish, or abandon instead."""
        world, tally = self._world, self._world.tally
        [target] = set(DIMS) - {self._owner}
        with world.connect() as connection:
            [count] = connection.execute("SELECT count(*) FROM live.docs").fetchone() or [0]
        migration = Migration(
            self._service,
            "docs",
            target,
            tally,
            self._alterations.resolve,
            rows_per_second=max(50, count / fill_s),
            batch=50,
        )
        tally.say(f"{self._owner} to {target}, {count} rows: run")
        migration.step_to("filled")
        states = ["cut-over", "rolled-back"]
        states += ["abandoned"] if abandon else ["cut-over", "finished"]
        for state in states:
            kill = state == "finished" or self._random.random() < self._kills
            world.switching, world.switches = True, world.switches + 1
            migration.step_to(state, self._kill_within if kill else None)
            world.switching = False
            tally.say(state)
            tally.count("steps", state)
            time.sleep(self._random.uniform(0.5, fill_s / 2))
        if not abandon:
            self._owner = target
        self._alterations.resolve()
        with world.alone():
            self.compare_all()

    def compare_all(self) -> None:
        world = self._world
        compare(world.url, world.tally, self._service.translate, "after each migration")
        compare_journals(world)
        compare_definitions(world.url, world.tally, "after each migration")
        if names := leftovers(world.url):
            world.tally.fault("leftovers", str(names))
        rebase(world)

    def _kill_within(self, path: str) -> None:
        self._service.call_and_kill(path, self._random.uniform(0.0, 0.25))


def make_world(server: PgvectorServer, tally: Tally, *, seed: int, rows: int) -> World:
    """A database `shop` with both tables, and clients that do not write yet."""
    server.execute(
        "CREATE DATABASE shop",
        "DO $$ BEGIN CREATE ROLE torture_reader; EXCEPTION WHEN duplicate_object THEN END $$",
    )
    url = server.url.replace("/postgres?", "/shop?")
    create(url, rows)
    world = World(url, tally, seed, CLIENTS)
    world.clients = [Client(world, number, rows) for number in range(CLIENTS)]
    return world


def torture_pgvector(
    world: World,
    server: PgvectorServer,
    folder: Path,
    service: Processes,
    *,
    seconds: float,
    kills: float,
) -> None:
    """Torture one table for about this time. kills: share of the steps in which the API dies."""
    pace = min(1.0, seconds / 120)
    # Until a vacuum, each write leaves a dead entry in the index, which a search reads as well.
    fields: dict[str, Any] = {"vector_field": "embedding", "options": {"ef_search": 400}}
    service.connect("pgvector", "pgvector", "docs", "live.docs", **fields)
    alterations = Alterations(world, 8 * pace)
    dumps = Dumps(world, server, folder, service, 15 * pace)
    others = [alterations, dumps, Saboteur(world, service, max(4.0, 8 * pace))]
    threads = [*world.clients, *others, Watch(world, service.translate)]
    for thread in threads:
        thread.start()
    rounds = Rounds(world, service, alterations, kills)
    until, number = time.monotonic() + seconds, 0
    try:
        while number == 0 or time.monotonic() < until:
            rounds.round(12 * pace, abandon=number % 4 == 3)
            number += 1
    finally:
        world.end.set()
        for thread in threads:
            thread.join()
    rounds.compare_all()
    if not dumps.gone_on:
        world.tally.fault("dump", "no dump had a migration")
