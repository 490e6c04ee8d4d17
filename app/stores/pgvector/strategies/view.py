"""The view that joins rows and new vectors after a cutover, so that clients' statements still work.

Its triggers write both tables. Deletions and new keys of rows, also by foreign keys, reach the
vectors by a trigger on the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.facts import grants
from app.stores.pgvector.layout import PgColumn, PgRelation

_WRITE = """
CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $anchorage$
DECLARE present text; present_vector text;
BEGIN
  IF TG_OP = 'DELETE' THEN
    DELETE FROM {rows} r WHERE r.{key} = OLD.{key};
    IF NOT FOUND THEN RETURN NULL; END IF;
    RETURN OLD;
  END IF;
  IF TG_OP = 'INSERT' THEN
    {insert}
    IF NOT FOUND THEN RETURN NULL; END IF;
    INSERT INTO {vectors} ({key}, {vector}) VALUES (NEW.{key}, NEW.{vector});
    RETURN NEW;
  END IF;
  SELECT ROW({present})::text INTO present FROM {rows} r WHERE r.{key} = OLD.{key} FOR UPDATE;
  IF NOT FOUND THEN RETURN NULL; END IF;
  SELECT v.{vector}::text INTO present_vector FROM {vectors} v WHERE v.{key} = OLD.{key};
  IF present IS DISTINCT FROM ROW({old})::text
      OR present_vector IS DISTINCT FROM OLD.{vector}::text THEN
    RAISE EXCEPTION 'could not serialize access due to concurrent update'
      USING ERRCODE = 'serialization_failure',
        HINT = 'The table is a view during a change of its vectors. Repeat the transaction.';
  END IF;
  UPDATE {rows} r SET {assignments} WHERE r.{key} = OLD.{key} RETURNING {returned} INTO {targets};
  IF NOT FOUND THEN RETURN NULL; END IF;
  IF NEW.{vector}::text IS DISTINCT FROM OLD.{vector}::text THEN
    UPDATE {vectors} v SET {vector} = NEW.{vector} WHERE v.{key} = NEW.{key};
  END IF;
  RETURN NEW;
END $anchorage$"""

_FOLLOW = """
CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $anchorage$
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    DELETE FROM {vectors};
  ELSIF TG_OP = 'DELETE' THEN
    DELETE FROM {vectors} v WHERE v.{key} = OLD.{key};
  ELSE
    UPDATE {vectors} v SET {key} = NEW.{key} WHERE v.{key} = OLD.{key};
  END IF;
  RETURN NULL;
END $anchorage$"""


@dataclass(frozen=True)
class JoinedView:
    """A view `name` of `rows` and `vectors`. prefix: begins the names of its functions.

    order  the columns that clients see
    """

    schema: str
    name: str
    rows: str
    vectors: str
    key: str
    vector: str
    prefix: str
    order: tuple[str, ...]

    def identifier(self, name: str) -> sql.Identifier:
        return sql.Identifier(self.schema, name)

    @property
    def view(self) -> sql.Identifier:
        return self.identifier(self.name)

    def create(self, connection: StoreConnection, rows: PgRelation) -> None:
        """Create it like the table `rows`, which has its new name: with its rights and comment."""
        connection.run(
            "CREATE VIEW {} {} AS SELECT {} FROM {} r JOIN {} v ON v.{key} = r.{key}",
            self.view,
            sql.SQL(
                "WITH (security_invoker = true)" if connection.info.server_version >= 150000 else ""
            ),
            sql.SQL(", ").join(
                sql.Identifier("v" if name == self.vector else "r", name) for name in self.order
            ),
            self.identifier(self.rows),
            self.identifier(self.vectors),
            key=self.key,
        )
        for column in rows.columns:
            if column.default is not None and not column.generated and column.name in self.order:
                connection.run(
                    "ALTER VIEW {} ALTER COLUMN {} SET DEFAULT {}",
                    self.view,
                    column.name,
                    sql.SQL(column.default),
                )
        self._create_functions(connection, rows)
        owner = sql.Identifier(rows.owner)
        connection.run("ALTER VIEW {} OWNER TO {}", self.view, owner)
        for statement in grants(connection, rows.oid, self.view):
            connection.execute(statement)
        connection.run("COMMENT ON VIEW {} IS {}", self.view, self._comment(connection, rows))

    def _comment(self, connection: StoreConnection, rows: PgRelation) -> sql.Literal:
        row = connection.execute("SELECT obj_description(%s, 'pg_class')", [rows.oid]).fetchone()
        return sql.Literal(None if row is None else row[0])

    def _create_functions(self, connection: StoreConnection, rows: PgRelation) -> None:
        write, follow = (self.identifier(f"{self.prefix}_{part}") for part in ("write", "follow"))
        connection.execute(self._write_function(write, rows))
        connection.run(
            _FOLLOW, function=follow, vectors=self.identifier(self.vectors), key=self.key
        )
        values = {
            "write": write,
            "follow": follow,
            "view": self.view,
            "rows": self.identifier(self.rows),
            "key": sql.Identifier(self.key),
            "owner": sql.Identifier(rows.owner),
        }
        for statement in (
            "CREATE TRIGGER anchorage_write INSTEAD OF INSERT OR UPDATE OR DELETE ON {view} "
            "FOR EACH ROW EXECUTE FUNCTION {write}()",
            "CREATE TRIGGER anchorage_follow_delete AFTER DELETE ON {rows} "
            "FOR EACH ROW EXECUTE FUNCTION {follow}()",
            "CREATE TRIGGER anchorage_follow_key AFTER UPDATE ON {rows} FOR EACH ROW "
            "WHEN (OLD.{key} IS DISTINCT FROM NEW.{key}) EXECUTE FUNCTION {follow}()",
            "CREATE TRIGGER anchorage_follow_truncate AFTER TRUNCATE ON {rows} "
            "FOR EACH STATEMENT EXECUTE FUNCTION {follow}()",
            "ALTER TABLE {rows} ENABLE ALWAYS TRIGGER anchorage_follow_delete",
            "ALTER TABLE {rows} ENABLE ALWAYS TRIGGER anchorage_follow_key",
            "ALTER TABLE {rows} ENABLE ALWAYS TRIGGER anchorage_follow_truncate",
            "ALTER FUNCTION {follow}() OWNER TO {owner}",
            "ALTER FUNCTION {write}() OWNER TO {owner}",
        ):
            connection.run(statement, **values)

    def _write_function(self, function: sql.Identifier, rows: PgRelation) -> sql.Composed:
        payload = [each for each in rows.columns if each.name in self.order]
        payload = [each for each in payload if each.name != self.vector]
        written = [each for each in payload if not each.generated]
        changed = [each for each in written if each.identity != "a"]
        insert = self._insert(written, payload)
        identity = [each for each in written if each.identity]
        if identity:
            rest = [each for each in written if not each.identity]
            insert = sql.SQL("IF NEW.{} IS NULL THEN {} ELSE {} END IF;").format(
                sql.Identifier(identity[0].name), self._insert(rest, payload), insert
            )
        return sql.SQL(_WRITE).format(
            function=function,
            rows=self.identifier(self.rows),
            vectors=self.identifier(self.vectors),
            key=sql.Identifier(self.key),
            vector=sql.Identifier(self.vector),
            insert=insert,
            present=_names("r", payload),
            old=_names("OLD", payload),
            assignments=sql.SQL(", ").join(
                sql.SQL("{} = NEW.{}").format(sql.Identifier(each.name), sql.Identifier(each.name))
                for each in changed or written
            ),
            returned=_names("r", payload),
            targets=_names("NEW", payload),
        )

    def _insert(self, columns: Sequence[PgColumn], payload: Sequence[PgColumn]) -> sql.Composed:
        return sql.SQL(
            "INSERT INTO {} AS r ({}) OVERRIDING SYSTEM VALUE VALUES ({}) RETURNING {} INTO {};"
        ).format(
            self.identifier(self.rows),
            sql.SQL(", ").join(sql.Identifier(each.name) for each in columns),
            _names("NEW", columns),
            _names("r", payload),
            _names("NEW", payload),
        )

    def drop(self, connection: StoreConnection) -> None:
        """Drop the view and its functions and triggers."""
        connection.run("DROP VIEW IF EXISTS {}", self.view)
        for part in ("write", "follow"):
            connection.run(
                "DROP FUNCTION IF EXISTS {}() CASCADE", self.identifier(f"{self.prefix}_{part}")
            )


def _names(prefix: str, columns: Sequence[PgColumn]) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("{}.{}").format(sql.SQL(prefix), sql.Identifier(each.name)) for each in columns
    )
