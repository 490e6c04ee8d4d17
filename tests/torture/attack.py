"""The torture of a table in PostgreSQL: clients, saboteurs, dumps, and rounds of migrations."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from app.errors import StoreChanged, StoreUnsupported
from app.stores.pgvector import PgvectorStore
from app.stores.pgvector.tables import load_layout
from app.stores.port import StoreLocation
from tests.pgvector_server import PgvectorServer
from tests.stores.pgvector.catalogue import leftovers
from tests.torture.definitions import Alterations, compare_definitions
from tests.torture.pgvector import Client, World, alone, compare, create, rebase
from tests.torture.service import DIMS, Migration, Processes
from tests.torture.tally import Tally
from tests.waiting import slack

CLIENTS = 4


class Attack:
    """Tortures one table. kills: share of the steps in which the API dies."""

    def __init__(
        self,
        server: PgvectorServer,
        folder: Path,
        tally: Tally,
        *,
        seed: int,
        rows: int,
        kills: float,
    ) -> None:
        """Create a database `shop` with both tables, and clients that do not write yet."""
        server.execute(
            "CREATE DATABASE shop",
            "DO $$ BEGIN CREATE ROLE torture_reader; EXCEPTION WHEN duplicate_object THEN END $$",
        )
        url = server.url.replace("/postgres?", "/shop?")
        create(url, rows)
        self.world = World(url, tally, seed, CLIENTS)
        self._clients = [Client(self.world, number, rows) for number in range(CLIENTS)]
        self._server, self._folder, self._tally, self._kills = server, folder, tally, kills
        self._numbers = count(1)
        self._gone_on = 0

    def run(self, service: Processes, seconds: float) -> None:
        """Torture the table for about this time."""
        world, pace = self.world, min(1.0, seconds / 120)
        # Until a vacuum, each write leaves a dead entry in the index, which a search reads as well.
        fields: dict[str, Any] = {"vector_field": "embedding", "options": {"ef_search": 400}}
        service.connect("pgvector", "pgvector", "docs", "live.docs", **fields)
        alterations = Alterations(world)
        threads = [
            *self._clients,
            self._repeat("alterations", 8 * pace, alterations.alter),
            self._repeat("dumps", 15 * pace, lambda draw: self._dump(draw, service)),
            self._repeat("saboteur", max(4.0, 8 * pace), lambda draw: self._kill(draw, service)),
            self._repeat("watch", 1.0, lambda draw: self._compare("while clients write", service)),
        ]
        for thread in threads:
            thread.start()
        draw, owner = random.Random(f"{world.seed} rounds"), "first"
        until, number = time.monotonic() + seconds, 0
        try:
            while number == 0 or time.monotonic() < until:
                [target] = set(DIMS) - {owner}
                abandon = number % 4 == 3
                self._round(service, alterations, draw, target, 12 * pace, abandon=abandon)
                owner = owner if abandon else target
                number += 1
        finally:
            world.end.set()
            for thread in threads:
                thread.join()
        if not self._gone_on:
            self._tally.fault("dump", "no dump had a migration")

    def _repeat(
        self, name: str, every_s: float, act: Callable[[random.Random], None]
    ) -> threading.Thread:
        """Return a thread that acts until the end, about as often."""
        draw = random.Random(f"{self.world.seed} {name}")

        def run() -> None:
            while not self.world.end.wait(draw.uniform(0, 2 * every_s)):
                try:
                    act(draw)
                except Exception as error:
                    self._tally.fault(name, f"{type(error).__name__}: {error}")

        return threading.Thread(target=run, name=name)

    def _round(
        self,
        service: Processes,
        alterations: Alterations,
        draw: random.Random,
        target: str,
        fill_s: float,
        *,
        abandon: bool,
    ) -> None:
        """One migration, and a comparison of everything."""
        world = self.world
        with world.connect() as connection:
            [rows] = connection.execute("SELECT count(*) FROM live.docs").fetchone() or [0]
        pace = {"rows_per_second": max(50, rows / fill_s), "batch": 50}
        migration = Migration(service, "docs", target, self._tally, alterations.resolve, **pace)
        self._tally.say(f"to {target}, {rows} rows: run")
        kill = service.call_and_kill
        pause_s = fill_s / 2
        migration.tour(
            draw, kill, self._switch, kills=self._kills, abandon=abandon, pause_s=pause_s
        )
        alterations.resolve()
        with alone(world.locks):
            self._compare("after each migration", service)
            compare_definitions(world.url, self._tally, "after each migration")
            self._find_leftovers(world.url, "after each migration")
            rebase(world)

    @contextmanager
    def _switch(self, state: str) -> Iterator[None]:
        self.world.switching, self.world.switches = True, self.world.switches + 1
        yield
        self.world.switching = False

    def _compare(self, where: str, service: Processes) -> None:
        compare(self.world.url, self._tally, service.translate, where)

    def _kill(self, draw: random.Random, service: Processes) -> None:
        """Kill a worker, or a backend of a client or of the service."""
        what = draw.choice(("worker", "client", "client", "service"))
        if what == "worker":
            service.kill_worker()
            return
        time.sleep(slack() / 2)
        with self.world.connect(autocommit=True) as connection:
            pids = list(self.world.backends.values())
            if what == "service":
                rows = connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name = 'anchorage' "
                    "AND datname = current_database()"
                )
                pids = [row[0] for row in rows]
            if pids:
                connection.execute("SELECT pg_terminate_backend(%s)", [draw.choice(pids)])
                self._tally.count("kills", f"backend of a {what}")

    def _dump(self, draw: random.Random, service: Processes) -> None:
        """Dump, restore, compare, and go on with the migration of the restored database."""
        world, tally, name = self.world, self._tally, f"restored_{next(self._numbers)}"
        at_switch, switches, file = world.switching, world.switches, self._folder / name
        self._server.execute(f"CREATE DATABASE {name}")
        url = world.url.replace("/shop?", f"/{name}?")
        try:
            self._command("pg_dump", "-Fc", "-f", str(file), world.url)
            self._command("pg_restore", "-1", "-e", "-d", url, str(file))
        except RuntimeError as error:
            if not at_switch and world.switches == switches:
                raise
            # docs/how-to/pgvector.md: no dump may start in the moment of a switch
            tally.count("dumps", "failed, at a switch")
            tally.say(f"dump during a switch: {str(error)[-200:]}")
        else:
            tally.count("dumps", "restored")
            compare(url, tally, service.translate, "restored")
            compare_definitions(url, tally, "restored", unvalidated=True)
            self._go_on(draw, service, url)
        finally:
            self._server.execute(f"DROP DATABASE {name} WITH (FORCE)")
            file.unlink(missing_ok=True)

    def _command(self, program: str, *arguments: str) -> None:
        binary = Path(self._server._initdb).parent / program
        done = subprocess.run([binary, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.strip()[-500:]}")

    def _go_on(self, draw: random.Random, service: Processes, url: str) -> None:
        location = StoreLocation("pgvector", url, "live.docs", vector_field="embedding")
        store, refusal = PgvectorStore(location), ""
        with store.connections.use("to look at a dump") as connection:
            layout = load_layout(connection, location)
        if layout.moving is None:
            store.close()
            return
        migration = store.migration(layout.moving.tag, layout.table("new").dim or 0)
        step = draw.choice(("rollback", "finish")) if layout.moving.is_cut_over else "abandon"
        try:
            if step == "rollback":
                migration.rollback(lambda ids, vectors: service.translate(vectors))
            else:
                getattr(migration, step)()
        except (StoreChanged, StoreUnsupported) as error:  # a client altered or published a table
            refusal = f" refused: {error.code}"
            self._tally.say(f"restored, {step}: {str(error)[:200]}")
        finally:
            store.close()
        compare(url, self._tally, service.translate, f"restored, {step}")
        compare_definitions(url, self._tally, f"restored, {step}", unvalidated=bool(refusal))
        if not refusal and step != "rollback":
            self._find_leftovers(url, f"after a restore and {step}")
        self._tally.count("dumps", f"went on by {step}{refusal}")
        self._gone_on += 1

    def _find_leftovers(self, url: str, where: str) -> None:
        with psycopg.connect(url) as connection:
            if names := leftovers(connection):
                self._tally.fault("leftovers", f"{where}: {names}")
