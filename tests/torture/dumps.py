"""Dumps of a tortured database, which are restored and whose migration goes on there."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from app.errors import StoreChanged, StoreUnsupported
from app.stores.pgvector import PgvectorStore
from app.stores.port import StoreLocation
from tests.pgvector_server import PgvectorServer
from tests.torture.definitions import compare_definitions, hidden_table
from tests.torture.service import SOURCE_DIM, TARGET_DIM

if TYPE_CHECKING:
    from tests.torture.table import Table


class Dumps:
    """Dumps the database, restores it, and goes on with the migration of the restored one."""

    def __init__(self, table: Table, server: PgvectorServer, folder: Path) -> None:
        self._table, self._server, self._folder = table, server, folder
        self._binaries = Path(server._initdb).parent
        self.went_on = 0

    def dump(self, draw: random.Random) -> None:
        """Dump, restore, compare, and take a random step."""
        table, tally, file = self._table, self._table.tally, self._folder / "dump"
        switches = table.switches
        self._server.execute("CREATE DATABASE restored")
        url = table.url.replace("/shop?", "/restored?")
        try:
            self._command("pg_dump", "-Fc", "-f", str(file), table.url)
            self._command("pg_restore", "-1", "-e", "-d", url, str(file))
            tally.count("dumps", "restored")
            table.compare_rows("restored", url)
            compare_definitions(url, tally, "restored", unvalidated=True)
            self._go_on(url, draw)
        except subprocess.CalledProcessError as error:
            if switches % 2 == 0 and table.switches == switches:
                raise RuntimeError(error.stderr[-500:]) from error
            # docs/how-to/pgvector.md: no dump may start in the moment of a switch
            tally.count("dumps", "failed, at a switch")
            tally.say(f"dump during a switch: {error.stderr[-200:]}")
        finally:
            self._server.execute("DROP DATABASE restored WITH (FORCE)")

    def _command(self, program: str, *arguments: str) -> None:
        command = [self._binaries / program, *arguments]
        subprocess.run(command, capture_output=True, text=True, check=True)

    def _go_on(self, url: str, draw: random.Random) -> None:
        table, tally = self._table, self._table.tally
        hidden, dim = hidden_table(url)
        if hidden is None:
            return
        is_cut_over = hidden.endswith("old")
        step = draw.choice(("rollback", "finish")) if is_cut_over else "abandon"
        new_dim = dim if is_cut_over else SOURCE_DIM + TARGET_DIM - dim
        store = PgvectorStore(StoreLocation("pgvector", url, "live.docs", vector_field="embedding"))
        refusal = ""
        try:
            migration = store.migration(hidden.split("_")[1], new_dim)
            if step == "rollback":
                migration.rollback(lambda ids, vectors: table.translate(vectors))
            else:
                getattr(migration, step)()
        except (StoreChanged, StoreUnsupported) as error:  # a client altered or published a table
            refusal = f", refused: {error.code}"
            tally.say(f"restored, {step}: {str(error)[:200]}")
        finally:
            store.close()
        table.compare_rows(f"restored, {step}", url)
        compare_definitions(url, tally, f"restored, {step}", unvalidated=bool(refusal))
        if not refusal and step != "rollback" and (names := table.leftovers(url)):
            tally.fault("leftovers", f"after a restore and {step}: {names}")
        tally.count("dumps", f"went on by {step}{refusal}")
        self.went_on += 1
