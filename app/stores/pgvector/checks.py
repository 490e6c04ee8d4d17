"""What a reindexing requires of the role and the table, and what must stay the same."""

from __future__ import annotations

from typing import Any

from app.errors import StoreChanged, StoreRefused, StoreUnsupported, WrongState
from app.stores.base import StoreLocation
from app.stores.pgvector.catalogue import vector_indexes
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.facts import metric_of
from app.stores.pgvector.layout import PgLayout, PgState

#: most dimensions that hnsw and ivfflat index
INDEXED_DIM = {"vector": 2000, "halfvec": 4000}

_RIGHTS = """
SELECT pg_get_userbyid(c.relowner), pg_has_role(c.relowner, 'USAGE'),
  has_schema_privilege(n.oid, 'CREATE'), has_database_privilege(current_database(), 'TEMPORARY'),
  pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
  r.rolsuper OR r.rolbypassrls, quote_ident(current_user), quote_ident(n.nspname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_roles r ON r.rolname = current_user WHERE c.oid = %s"""


def require_same(layout: PgLayout, tag: str, strategy: str, dim: int) -> PgState:
    """Return the state. Raises StoreChanged if the table differs from what `prepare` found."""
    state = layout.state
    assert state is not None
    if state.tag != tag:
        raise StoreRefused(
            f"Another reindexing, {state.tag}, is in progress on the table. Finish or abandon "
            "it first."
        )
    if state.strategy != strategy or state.dim != dim:
        raise StoreChanged(
            f"The reindexing was prepared by strategy {state.strategy!r} for {state.dim} "
            f"dimensions, not {strategy!r} for {dim}. Abandon it first."
        )
    found = form_of(layout, strategy)
    if found != state.form:
        differences = [key for key in found if found[key] != state.form.get(key)]
        raise StoreChanged(
            "The table has changed since the reindexing was prepared: "
            + "; ".join(f"{key} was {state.form.get(key)}, is {found[key]}" for key in differences)
            + ". Undo the change, or abandon the reindexing if it is not cut over."
        )
    return state


def first_state(
    connection: StoreConnection,
    layout: PgLayout,
    location: StoreLocation,
    tag: str,
    strategy: str,
    dim: int,
) -> PgState:
    """Return the state of a reindexing that begins. Raises StoreUnsupported."""
    old = layout.old
    type_name = str(location.options.get("type", old.type_name))
    indexes = [
        [each.method, each.schema, each.operators, list(each.options)]
        for each in vector_indexes(connection, old.relation, old.column)
        if not each.partial
    ]
    if type_name not in INDEXED_DIM:
        raise StoreUnsupported("The option `type` is `vector` or `halfvec`.", field="options")
    if indexes and dim > INDEXED_DIM[type_name]:
        raise StoreUnsupported(
            f"pgvector indexes at most {INDEXED_DIM[type_name]} dimensions of {type_name}; the "
            f"new vectors have {dim}. Set the store's option `type` to `halfvec`, which "
            "can have 4000.",
            field="options",
        )
    details = {
        "rows": layout.rows.name,
        "old": old.relation.name,
        "key": old.key,
        "column": old.column,
        "metric": metric_of(connection, layout),
        "indexes": indexes,
        "not_null": old.relation.column(old.column).not_null,
    }
    return PgState(
        tag,
        strategy,
        "prepared",
        layout.table.name,
        dim,
        type_name,
        form_of(layout, strategy),
        details,
    )


def require_rights(connection: StoreConnection, layout: PgLayout) -> None:
    """Raises StoreRefused with the rights that the role lacks."""
    row = connection.execute(_RIGHTS, [layout.rows.oid]).fetchone()
    assert row is not None
    owner, owns, creates, temporary, read_only, bypasses, role, schema = row
    missing = []
    if read_only:
        missing.append("a server that accepts writes: this one is a read-only replica")
    if not owns:
        missing.append(f"membership in the owner of the table (GRANT {owner} TO {role})")
    if not creates:
        missing.append(f"CREATE in the schema (GRANT CREATE ON SCHEMA {schema} TO {role})")
    if not temporary:
        missing.append(f"temporary tables (GRANT TEMPORARY ON DATABASE ... TO {role})")
    if layout.rows.force_row_security and not bypasses:
        missing.append(f"all rows despite FORCE ROW LEVEL SECURITY (ALTER ROLE {role} BYPASSRLS)")
    if missing:
        raise StoreRefused(f"The role {role} lacks what a reindexing needs: {'; '.join(missing)}.")


def form_of(layout: PgLayout, strategy: str) -> dict[str, Any]:
    """Return what must stay the same: the key, and the type of the old vectors."""
    old = layout.old.relation.column(layout.old.column)
    return {
        "table": (layout.old.relation if strategy == "swap" else layout.rows).oid,
        "key": [layout.key.name, layout.key.type_text],
        "vectors": [old.name, old.type_text],
    }


def require_phase(state: PgState, cut_over: bool, action: str) -> None:
    """Raises WrongState unless clients see the new vectors, or the old ones, as expected."""
    if state.is_cut_over != cut_over:
        raise WrongState(
            f"The reindexing cannot {action}: it is {state.phase}. "
            + ("Cut over first." if cut_over else "Roll back first.")
        )
