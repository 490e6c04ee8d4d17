"""Switches: the second table takes the name of the first, and all that belongs to it; and ends.

The second table has the same columns, options and indexes, whose names a switch exchanges. All else
is moved. The catalogue writes the statements. They name the table by its name, which the other
table has when those run that give.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import LiteralString

import psycopg

from app.errors import StoreChanged, StoreRefused, StoreUnavailable, StoreUnsupported, WrongState
from app.stores.pgvector.checks import require_same_tables
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.filters import require_dim
from app.stores.pgvector.following import CAPTURED_ROWS, Follower, PgNewVectors, save_state
from app.stores.pgvector.locks import lock_all, locks_of_switch, run_locked
from app.stores.pgvector.second_table import (
    exchange_index_names,
    has_same_indexes,
    require_size,
    start_capture,
    stop_capture,
)
from app.stores.pgvector.tables import load_layout, name_of, traces_of
from app.stores.port import TranslateRows

#: for how long captured writes are applied until so few are left that a switch can translate them
#: while clients wait
DRAIN_PATIENCE_S = 300.0

#: statements that take something from the table, and that give it to the other one
_MOVED: LiteralString = """
WITH t AS (SELECT c.*, format('%%I.%%I', n.nspname, c.relname) AS name FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %(oid)s),
s AS (SELECT c.oid, c.relacl, c.relowner, format('%%I.%%I', n.nspname, c.relname) AS name,
  quote_ident(a.attname) AS field, a.attidentity, q.* FROM pg_depend d
  JOIN pg_class c ON c.oid = d.objid JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_sequence q ON q.seqrelid = c.oid
  JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
  WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
  AND d.refobjid = %(oid)s AND d.deptype IN ('a', 'i'))
SELECT 1, NULL, format('ALTER TABLE %%s OWNER TO %%I; ALTER TABLE %%1$s %%3$s ROW LEVEL SECURITY, '
    '%%4$s ROW LEVEL SECURITY', name, pg_get_userbyid(relowner),
    CASE WHEN relrowsecurity THEN 'ENABLE' ELSE 'DISABLE' END,
    CASE WHEN relforcerowsecurity THEN 'FORCE' ELSE 'NO FORCE' END) FROM t
UNION ALL SELECT 1, NULL, format('ALTER SEQUENCE %%s OWNED BY %%s.%%s', s.name, t.name, field)
  FROM t, s WHERE attidentity = ''
UNION ALL SELECT 1, format('SELECT set_config(''anchorage.drawn_%%s'', last_value || '' '' || '
    'is_called, true) FROM %%s; ALTER TABLE %%s ALTER %%s DROP IDENTITY',
    s.oid, s.name, t.name, field),
  format('ALTER TABLE %%s ALTER %%s ADD GENERATED %%s AS IDENTITY (SEQUENCE NAME %%s INCREMENT %%s '
    'MINVALUE %%s MAXVALUE %%s START %%s CACHE %%s %%s); '
    'SELECT setval(%%4$L, n[1]::bigint, n[2]::boolean) FROM string_to_array(current_setting('
    '''anchorage.drawn_%%11$s''), '' '') n', t.name, field,
    CASE attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END, s.name, seqincrement, seqmin,
    seqmax, seqstart, seqcache, CASE WHEN seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END, s.oid)
  FROM t, s WHERE attidentity <> ''
UNION ALL SELECT 2, NULL, format('REVOKE ALL ON SEQUENCE %%s FROM %%s', s.name,
    CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END)
  FROM s, pg_default_acl, aclexplode(defaclacl)
  WHERE attidentity <> '' AND defaclobjtype = 'S' AND grantee <> s.relowner
UNION ALL SELECT 3, CASE WHEN kind = 'TABLE' THEN
    format('REVOKE ALL ON %%s %%s FROM %%s CASCADE', kind, r.name, role) END,
  format('GRANT %%s ON %%s %%s TO %%s', privilege_type, kind, r.name, role) ||
    CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
  FROM (SELECT 'TABLE', name, relacl, relowner FROM t UNION ALL
    SELECT 'SEQUENCE', name, relacl, relowner FROM s WHERE attidentity <> '')
  r(kind, name, relacl, relowner), aclexplode(relacl),
  LATERAL (SELECT CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee))
    END) g(role) WHERE grantee <> relowner
UNION ALL SELECT 3, format('DROP POLICY %%I ON %%s', p.polname, name),
  format('CREATE POLICY %%I ON %%s AS %%s FOR %%s TO %%s', p.polname, name,
    CASE WHEN p.polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
    CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE'
      WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
    (SELECT string_agg(CASE WHEN r = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r)) END, ', ')
      FROM unnest(p.polroles) r))
    || coalesce(' USING (' || pg_get_expr(p.polqual, p.polrelid) || ')', '')
    || coalesce(' WITH CHECK (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')', '')
  FROM t JOIN pg_policy p ON p.polrelid = t.oid
UNION ALL SELECT 3, format('DROP TRIGGER %%I ON %%s', tgname, name), pg_get_triggerdef(g.oid) ||
    format('; ALTER TABLE %%s %%s TRIGGER %%I', name, CASE tgenabled WHEN 'R' THEN 'ENABLE REPLICA'
      WHEN 'A' THEN 'ENABLE ALWAYS' WHEN 'D' THEN 'DISABLE' ELSE 'ENABLE' END, tgname)
  FROM t JOIN pg_trigger g ON g.tgrelid = t.oid WHERE NOT tgisinternal
UNION ALL SELECT 3, format('ALTER TABLE %%I.%%I DROP CONSTRAINT %%I', n.nspname, c.relname,
    k.conname), format('ALTER TABLE %%I.%%I ADD CONSTRAINT %%I %%s NOT VALID', n.nspname, c.relname,
    k.conname, pg_get_constraintdef(k.oid))
  FROM t JOIN pg_constraint k ON t.oid IN (k.conrelid, k.confrelid) AND k.contype = 'f'
    AND k.conparentid = 0
  JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
UNION ALL SELECT 3, NULL, format('CREATE OR REPLACE VIEW %%I.%%I %%s AS %%s', n.nspname, v.relname,
    'WITH (' || array_to_string(v.reloptions, ', ') || ')', pg_get_viewdef(v.oid))
  FROM pg_class v JOIN pg_namespace n ON n.oid = v.relnamespace
  WHERE v.relkind = 'v' AND v.oid IN (SELECT w.ev_class FROM pg_rewrite w JOIN pg_depend d
    ON d.objid = w.oid AND d.classid = 'pg_rewrite'::regclass
    AND d.refclassid = 'pg_class'::regclass WHERE d.refobjid = %(oid)s)
UNION ALL SELECT 3, NULL, format('COMMENT ON TABLE %%s IS %%L', name,
  obj_description(oid, 'pg_class')) FROM t
UNION ALL SELECT 3, NULL, format('COMMENT ON COLUMN %%s.%%I IS %%L', name, a.attname,
  col_description(t.oid, a.attnum)) FROM t JOIN pg_attribute a ON a.attrelid = t.oid
  WHERE a.attnum > 0 AND NOT a.attisdropped
ORDER BY 1"""

#: foreign keys from the table and to it that are not validated, but enforced
_TO_VALIDATE: LiteralString = """
SELECT format('ALTER TABLE %%I.%%I VALIDATE CONSTRAINT %%I', n.nspname, c.relname, k.conname)
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE k.contype = 'f' AND k.conparentid = 0 AND %s IN (k.conrelid, k.confrelid)
  AND NOT k.convalidated AND to_jsonb(k) ->> 'conenforced' IS DISTINCT FROM 'false'"""


class PgMigration(PgNewVectors):
    """New vectors in a copy of the table, which can take the table's name."""

    def is_cut_over(self) -> bool:
        with self.connections.use("to read the migration") as connection:
            traces = traces_of(connection, self.location, self.tag)  # locks nothing
        return name_of(self.tag, "old") in {name for name, *_ in traces}

    def cutover(self, translate: TranslateRows) -> float:
        return self._switch("to cut over", translate, to_new=True)

    def rollback(self, translate_back: TranslateRows) -> float:
        return self._switch("to roll back", translate_back, to_new=False)

    def finish(self) -> None:
        self._remove(cut_over=True)

    def abandon(self) -> None:
        self._remove(cut_over=False)

    def _switch(self, action: str, translate: TranslateRows, *, to_new: bool) -> float:
        self._validate()
        with self._follow("to check the table") as follower:
            if follower.layout.state.is_cut_over == to_new:
                return 0.0
            require_same_tables(follower.layout)
            follower.copy_missing()
        self.build_index()
        longest, until = 0.0, time.monotonic() + DRAIN_PATIENCE_S
        while time.monotonic() < until:
            self.copy_indexes()
            self._drain(translate, until)
            if self.requeue_different(only_rewritten=True) != 0:
                continue
            step = partial(self._exchange, translate, to_new)
            done, pause = run_locked(self.connections, self.location, action, step)
            longest = max(longest, pause)
            if done:
                self._validate()
                return longest
        raise StoreUnavailable(
            f"For {DRAIN_PATIENCE_S:.0f} s, clients wrote faster than their writes can be "
            "translated, or altered the table. Try again when they write less."
        )

    def _drain(self, translate: TranslateRows, until: float) -> None:
        """Apply captured writes until few are left."""
        while time.monotonic() < until:
            changes = self.changes(CAPTURED_ROWS)
            self.apply(changes, translate(changes.ids, changes.vectors))
            if len(changes.token) <= CAPTURED_ROWS // 10:
                return

    def _exchange(
        self, translate: TranslateRows, to_new: bool, connection: StoreConnection
    ) -> bool:
        """Give the name, and all that belongs to it, to the table that clients do not see.

        Returns False if something must be copied first.
        """
        layout = self._load(connection)
        if layout.state.is_cut_over == to_new:
            return True
        locks = locks_of_switch(layout)
        lock_all(connection, locks)
        layout = self._load(connection)  # nothing can change it from here on
        # A view or a foreign key may have come meanwhile.
        is_same = locks_of_switch(layout) == locks and has_same_indexes(layout)
        if not is_same or layout.files() != layout.state.files:
            return False
        follower = Follower(layout)
        changes = follower.read_changes(CAPTURED_ROWS + 1)
        if len(changes.token) > CAPTURED_ROWS:
            return False
        require_same_tables(layout)
        stop_capture(layout.seen)
        found = connection.execute(_MOVED, {"oid": layout.seen.oid}).fetchall()
        for _, take, _ in found:
            if take is not None:
                connection.execute(take.encode())
        if len(changes):  # it may take long: no other table must be locked after it
            vectors = translate(changes.ids, changes.vectors)
            if not follower.apply(changes, vectors):
                return False
        after = replace(layout.state, phase="cut-over" if to_new else "rolled-back")
        now = replace(layout.other, name=layout.seen.name)
        hidden = replace(layout.seen, name=after.hidden)
        for table, name in ((layout.seen, hidden.name), (layout.other, now.name)):
            connection.run("ALTER TABLE {} RENAME TO {}", table.identifier, name)
        exchange_index_names(self.tag, hidden)
        for *_, give in found:
            connection.execute(give.encode())
        start_capture(now, self.tag)
        require_size(now, self.tag, now.read_dim(of_empty=0))
        save_state(layout, after)
        return True

    def _validate(self, dim: int | None = None) -> None:
        """Validate foreign keys that a killed switch has added, and the size `dim` of vectors."""
        with (
            suppress(StoreChanged, StoreRefused, StoreUnsupported),  # of a table without a switch
            self.connections.use("to validate foreign keys", long=True, whole=False) as connection,
        ):
            layout = load_layout(connection, self.location)
            if layout.moving is None or layout.moving.phase == "prepared":
                return
            if dim is not None and layout.moving.is_cut_over and layout.seen.dim is None:
                require_dim(layout.seen, dim)
            for [statement] in connection.execute(_TO_VALIDATE, [layout.seen.oid]).fetchall():
                with (
                    suppress(psycopg.errors.ForeignKeyViolation),  # a client's own, meanwhile
                    connection.transaction(),
                ):
                    connection.execute(statement.encode())

    def _remove(self, *, cut_over: bool) -> None:
        """Drop the table that clients do not see, and all traces, by their names."""

        def step(connection: StoreConnection) -> None:
            found = traces_of(connection, self.location, self.tag)
            lock_all(connection, [lock for _, lock, _ in found if lock is not None])
            found = traces_of(connection, self.location, self.tag)  # nothing can change it now
            names = {name for name, *_ in found}
            if cut_over and name_of(self.tag, "new") in names:
                raise WrongState("The migration cannot finish: it is not cut over. Cut over first.")
            if not cut_over and name_of(self.tag, "old") in names:
                raise WrongState(
                    "The migration cannot be abandoned: it is cut over. Roll back first, or finish."
                )
            for *_, drop in found:
                connection.execute(drop.encode())

        self._validate(self.dim if cut_over else None)
        run_locked(self.connections, self.location, "to remove the migration", step)
