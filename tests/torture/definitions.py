"""What the catalogue says of a schema, and the statements that clients alter it with."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

import psycopg

from tests.stores.pgvector.catalogue import catalogue
from tests.torture.tally import Tally

if TYPE_CHECKING:
    from tests.torture.table import Table

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
#: a cutover refuses these until they are undone, or done in the hidden table as well
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
#: of these, what cannot be repeated in the hidden table, where names and statements differ
ONLY_UNDONE = ("CREATE PUBLICATION", "COMMENT ON INDEX", "SET NOT NULL")

#: readings of both schemas: a client may alter both between the first and the second
READINGS = 3


class Alterations:
    """Alters both tables now and then. `resolve` undoes what a switch refuses."""

    def __init__(self, table: Table) -> None:
        self._table, self._tally = table, table.tally
        self._lock = threading.Lock()
        self._random = random.Random(f"{table.seed} resolve")
        #: alterations that are done; a switch refuses the last ones until `resolve`
        self._done: list[tuple[str, str]] = []
        self._refused: list[tuple[str, str]] = []

    def alter(self, draw: random.Random) -> None:
        """Do one more alteration, or undo one."""
        with self._lock:
            undoable = [each for each in self._done if each in KEPT]
            if draw.random() < len(undoable) / len(KEPT):
                pair = draw.choice(undoable)
                if self._both(pair[1]):
                    self._done.remove(pair)
                return
            refuses = not self._refused and draw.random() < 0.25
            if refuses and hidden_table(self._table.url)[0] is None:
                refuses = False
            pair = draw.choice([e for e in (REFUSED if refuses else KEPT) if e not in self._done])
            if self._both(pair[0]):
                (self._refused if refuses else self._done).append(pair)

    def resolve(self) -> None:
        """Undo what a switch has refused, or do it in the hidden table as well."""
        with self._lock:
            for pair in self._refused:
                hidden, _ = hidden_table(self._table.url)
                repeats = not any(each in pair[0] for each in ONLY_UNDONE)
                if hidden and repeats and self._random.random() < 0.3:
                    with self._table.connect() as connection:
                        connection.execute(pair[0].replace("{s}.docs", hidden))
                    self._done.append(pair)
                    self._tally.count("alterations", "repeated in the hidden table")
                else:
                    while not self._both(pair[1]):
                        time.sleep(0.1)
                    self._tally.count("alterations", "refused by a switch, and undone")
            self._refused = []

    def _both(self, statement: str) -> bool:
        """Alter both tables in one transaction; whether it was possible."""
        try:
            with self._table.connect() as connection:
                connection.execute("SET LOCAL lock_timeout = '2s'")
                for schema in ("live", "control"):
                    connection.execute(statement.format(s=schema))
        except psycopg.Error as error:
            name = " ".join(statement.format(s="").split()[:6])
            self._tally.count("alterations refused", f"{error.sqlstate} {name}")
            return False
        self._tally.count("alterations", " ".join(statement.format(s="").split()[:2]))
        return True


def hidden_table(url: str) -> tuple[str | None, int]:
    """The table that clients do not see, if a migration has one, and the dimension of theirs."""
    with psycopg.connect(url) as connection:
        [row] = connection.execute(
            "SELECT (SELECT 'live.' || relname FROM pg_class "
            "WHERE relname ~ '^anchorage_[0-9a-f]{8}_(new|old)$'), atttypmod FROM pg_attribute "
            "WHERE attrelid = 'live.docs'::regclass AND attname = 'embedding'"
        ).fetchall()
    return row[0], row[1]


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
