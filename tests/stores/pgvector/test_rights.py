"""Other roles get no way to the vectors that they do not have through the table."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.stores.pgvector.tables import (
    NEW_DIM,
    TAG,
    Table,
    sweep,
    translate,
    translate_back,
)


@pytest.fixture
def role(table: Table) -> Iterator[str]:
    """A role with rights on each table and function that is created in the schema."""
    name = f"other_{table.schema}"
    for statement in (
        f"CREATE ROLE {name} LOGIN",
        f"GRANT USAGE, CREATE ON SCHEMA {{s}} TO {name}",
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {{s}} GRANT ALL ON TABLES TO {name}",
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {{s}} GRANT ALL ON FUNCTIONS TO {name}",
    ):
        table.execute(statement)
    yield name
    table.execute(f"DROP OWNED BY {name}")
    table.execute(f"DROP ROLE {name}")


def test_nobody_else_reads_or_fills_the_tables_of_a_migration(table: Table, role: str) -> None:
    migration = table.store().migration(TAG, NEW_DIM)
    sweep(table.store(), migration)
    with psycopg.connect(table.server.url_of(role), autocommit=True) as client:
        table.on(client, "CREATE TABLE {s}.own (id bigint)")
        for statement in (
            *(f"SELECT FROM {{s}}.anchorage_{TAG}_{each}" for each in ("new", "queue")),
            "CREATE TRIGGER t AFTER INSERT ON {s}.own FOR EACH ROW EXECUTE FUNCTION "
            f"{{s}}.anchorage_{TAG}_capture()",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                table.on(client, statement)


def test_identities_get_no_rights_by_default(table: Table, role: str) -> None:
    table.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {{s}} GRANT ALL ON SEQUENCES TO {role}")
    table.execute("ALTER TABLE {t} ADD n int GENERATED ALWAYS AS IDENTITY")
    table.execute(f"REVOKE ALL ON SEQUENCE {{s}}.docs_n_seq FROM {role}")
    table.execute(f"GRANT SELECT ON SEQUENCE {{s}}.docs_n_seq TO {role}")
    rights = "SELECT relacl::text FROM pg_class WHERE oid = '{s}.docs_n_seq'::regclass"
    before = table.execute(rights)
    migration = table.store().migration(TAG, NEW_DIM)
    sweep(table.store(), migration)
    migration.cutover(translate)
    assert table.execute(rights) == before
    migration.rollback(translate_back)
    assert table.execute(rights) == before


def test_a_state_of_another_owner_is_none(table: Table, role: str) -> None:
    migration = table.store().migration(TAG, NEW_DIM)
    sweep(table.store(), migration)
    [[state]] = table.execute(
        f"SELECT obj_description('{{s}}.anchorage_{TAG}_queue'::regclass, 'pg_class')"
    )
    with psycopg.connect(table.server.url_of(role), autocommit=True) as client:
        table.on(client, "CREATE TABLE {s}.anchorage_deadbeef_queue (key bigint)")
        state = state.replace(TAG, "deadbeef").replace("'", "''")
        table.on(client, f"COMMENT ON TABLE {{s}}.anchorage_deadbeef_queue IS '{state}'")
    migration.cutover(translate)
    assert table.store().facts().dim == NEW_DIM
