"""What the catalogue says of a schema, and the statements that clients alter it with."""

from __future__ import annotations

import random
import threading
import time

import psycopg

from tests.stores.pgvector.catalogue import catalogue
from tests.torture.pgvector import World
from tests.torture.tally import Tally

#: a statement for both tables, and the one that undoes it
KEPT = (
    ("CREATE INDEX counts ON {s}.docs (n)", "DROP INDEX {s}.counts"),
    ("COMMENT ON COLUMN {s}.docs.body IS 'other words'", "COMMENT ON COLUMN {s}.docs.body IS NULL"),
    ("GRANT UPDATE ON {s}.docs TO torture_reader", "REVOKE UPDATE ON {s}.docs FROM torture_reader"),
    (
        "CREATE TRIGGER again BEFORE UPDATE OF n ON {s}.docs FOR EACH ROW "
        "EXECUTE FUNCTION {s}.touch()",
        "DROP TRIGGER again ON {s}.docs",
    ),
    ("CREATE POLICY own ON {s}.docs USING (n >= 0)", "DROP POLICY own ON {s}.docs"),
    ("CREATE VIEW {s}.counted AS SELECT id, n FROM {s}.docs", "DROP VIEW {s}.counted"),
    ("CREATE UNIQUE INDEX pairs ON {s}.docs (id, slug)", "DROP INDEX {s}.pairs"),
    (
        "ALTER TABLE {s}.docs ALTER n TYPE int USING n + 1",
        "ALTER TABLE {s}.docs ALTER n TYPE int USING n - 1",
    ),
    ("ALTER TABLE {s}.docs DISABLE TRIGGER touch", "ALTER TABLE {s}.docs ENABLE TRIGGER touch"),
)
#: a switch refuses these until they are undone
REFUSED = (
    ("ALTER TABLE {s}.docs ADD extra int DEFAULT 7", "ALTER TABLE {s}.docs DROP extra"),
    (
        "ALTER TABLE {s}.docs ADD CONSTRAINT counted CHECK (n > -9)",
        "ALTER TABLE {s}.docs DROP CONSTRAINT counted",
    ),
    (
        "ALTER TABLE {s}.docs ALTER body SET DEFAULT 'none'",
        "ALTER TABLE {s}.docs ALTER body DROP DEFAULT",
    ),
    (
        "ALTER TABLE {s}.docs ALTER parent SET NOT NULL",
        "ALTER TABLE {s}.docs ALTER parent DROP NOT NULL",
    ),
    ("ALTER TABLE {s}.docs SET (fillfactor = 70)", "ALTER TABLE {s}.docs SET (fillfactor = 90)"),
    ("CREATE PUBLICATION {s}_rows FOR TABLE {s}.docs", "DROP PUBLICATION {s}_rows"),
    ("COMMENT ON INDEX {s}.bodies IS 'words'", "COMMENT ON INDEX {s}.bodies IS NULL"),
)
#: readings of both schemas: a client may alter both between the first and the second
READINGS = 3


class Alterations:
    """Alters both tables. `resolve` undoes what a switch refuses."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._done: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def alter(self, draw: random.Random) -> None:
        with self._lock:
            pair = draw.choice(KEPT + REFUSED)
            if pair in self._done:
                self._undo(pair)
            elif self._both(pair[0]):
                self._done.append(pair)

    def _undo(self, pair: tuple[str, str]) -> bool:
        is_undone = self._both(pair[1])
        if is_undone:
            self._done.remove(pair)
        return is_undone

    def resolve(self) -> None:
        """Undo what a switch has refused."""
        with self._lock:
            for pair in [each for each in self._done if each in REFUSED]:
                while not self._undo(pair):
                    self._world.end.wait(0.1)
                self._world.tally.count("alterations", "refused by a switch, and undone")

    def _both(self, statement: str) -> bool:
        """Alter both tables in one transaction; whether it was possible."""
        try:
            with self._world.connect() as connection:
                connection.execute("SET LOCAL lock_timeout = '2s'")
                for schema in ("live", "control"):
                    connection.execute(statement.format(s=schema))
        except psycopg.Error as error:
            name = " ".join(statement.format(s="").split()[:6])
            self._world.tally.count("alterations refused", f"{error.sqlstate} {name}")
            return False
        self._world.tally.count("alterations", " ".join(statement.format(s="").split()[:2]))
        return True


def compare_definitions(url: str, tally: Tally, where: str, *, unvalidated: bool = False) -> None:
    """Compare everything but the rows of both schemas.

    unvalidated  whether foreign keys may wait for a validation, as between a switch and its end
    """
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(READINGS):
            live, control = catalogue(connection, "live"), catalogue(connection, "control")
            if live == control:
                break
            time.sleep(0.3)
    if unvalidated:
        live = {
            (kind, each.replace(" false", " true", 1).removesuffix(" NOT VALID"))
            if kind == "constraint" and "FOREIGN KEY" in each
            else (kind, each)
            for kind, each in live
        }
    for kind, each in sorted(live ^ control):
        side = "lost" if (kind, each) in control else "new"
        tally.fault("definitions", f"{where}: {side} {kind} {each}")
    tally.count("definitions compared", where, len(control))
