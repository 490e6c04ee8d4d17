"""The migrations, run on real databases of both kinds."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, select, text

from app.storage import tables
from app.storage.db import Database, SchemaOutdated, alembic_config
from scripts.upgrade_from_aef478d import upgrade

#: the advisory lock that migrations/env.py takes
LOCK = 4_126_077_329
ROOT = Path(__file__).parents[2]


def look(url: str, function: Callable[[Connection], Any]) -> Any:
    engine = create_engine(url)
    with engine.begin() as connection:
        found = function(connection)
    engine.dispose()
    return found


def difference(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(
        connection, opts={"compare_type": True, "compare_server_default": True}
    )
    return list(compare_metadata(context, tables.Base.metadata))


def test_the_newest_schema_is_what_the_tables_say(database_url):
    command.upgrade(alembic_config(database_url), "head")
    assert look(database_url, difference) == []


def test_migrating_twice_changes_nothing_and_keeps_rows(empty):
    with empty.transaction() as session:
        session.add(tables.EncoderRow(name="e", kind="external", dim=2, modality="text"))
    empty.upgrade()
    with empty.transaction() as session:
        assert session.scalars(select(tables.EncoderRow.name)).all() == ["e"]


def test_of_two_migrations_at_the_same_moment_one_waits_for_the_other(postgres_url):
    script = "import sys; from app.storage.db import Database; Database(sys.argv[1]).upgrade()"
    # Both are held up before the first table until both stand there.
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as gate:
        gate.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        both = [
            subprocess.Popen(
                [sys.executable, "-c", script, postgres_url],
                cwd=ROOT,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        waiting = (
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
            "WHERE locktype = 'advisory' AND NOT granted AND objid = %s "
            "AND datname = current_database()"
        )
        for _ in range(600):
            found = gate.execute(waiting, (LOCK & 0xFFFFFFFF,))
            if found.fetchone() == (2,):
                break
            time.sleep(0.05)
        else:
            raise AssertionError("they never waited for each other")
    for process in both:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert look(postgres_url, difference) == []


def test_a_migration_of_sqlite_that_fails_at_its_end_changes_nothing_and_continues(tmp_path):
    file = tmp_path / "anchorage.db"
    db = Database(f"sqlite:///{file}")
    command.upgrade(alembic_config(db.url), "0011")
    at = "2026-01-02 03:04:05"
    with closing(sqlite3.connect(file, isolation_level=None)) as raw:
        raw.execute(
            "INSERT INTO reindexings (id, project, store_id, target_id, anchor_set_id, state, "
            "plan, maps, position, found, created_at, updated_at) "
            "VALUES ('r', 'p', 's', 'e', 'a', 'open', '{}', 'm', '{', '{}', ?, ?)",
            (at, at),
        )
        with pytest.raises(json.JSONDecodeError):  # from the documents that 0012 changes last
            db.upgrade()
        raw.execute("UPDATE reindexings SET position = '{\"of\": 3}'")
        db.upgrade()
        assert raw.execute("SELECT position FROM migrations").fetchone() == ('{"total": 3}',)
    db.close()
    assert look(str(db.url), difference) == []


def test_a_schema_of_another_version_is_refused(database_url):
    db = Database(database_url)
    with pytest.raises(SchemaOutdated, match="anchorage db upgrade"):
        db.require_schema()
    db.upgrade()
    db.require_schema()
    with db.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for call in (db.require_schema, db.upgrade):
        with pytest.raises(SchemaOutdated, match="9999"):
            call()
    db.close()


#: the tables of commit aef478d that have changed since
OLD_TABLES = """
DROP TABLE idempotent_requests;
DROP TABLE reindexings;
DROP TABLE aliases;
CREATE TABLE aliases (
    name VARCHAR(100) NOT NULL, model VARCHAR(400) NOT NULL, encoder_id VARCHAR(32),
    target_id VARCHAR(32), head_id VARCHAR(32), anchor_set_id VARCHAR(32), id VARCHAR(32) NOT NULL,
    project VARCHAR(100) NOT NULL, created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_aliases PRIMARY KEY (id),
    CONSTRAINT fk_aliases_anchor_set_id_anchor_sets
        FOREIGN KEY(anchor_set_id) REFERENCES anchor_sets (id),
    CONSTRAINT fk_aliases_encoder_id_encoders FOREIGN KEY(encoder_id) REFERENCES encoders (id),
    CONSTRAINT fk_aliases_head_id_heads FOREIGN KEY(head_id) REFERENCES heads (id),
    CONSTRAINT fk_aliases_target_id_encoders FOREIGN KEY(target_id) REFERENCES encoders (id),
    CONSTRAINT uq_aliases_project_name UNIQUE (project, name));
CREATE INDEX ix_aliases_anchor_set_id ON aliases (anchor_set_id);
CREATE INDEX ix_aliases_encoder_id ON aliases (encoder_id);
CREATE INDEX ix_aliases_head_id ON aliases (head_id);
CREATE INDEX ix_aliases_target_id ON aliases (target_id);
CREATE TABLE idempotent_requests (
    key VARCHAR(255) NOT NULL, fingerprint VARCHAR(64) NOT NULL, claim VARCHAR(32) NOT NULL,
    claimed_until TIMESTAMP WITH TIME ZONE NOT NULL, made VARCHAR(32), id VARCHAR(32) NOT NULL,
    project VARCHAR(100) NOT NULL, created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_idempotent_requests PRIMARY KEY (id),
    CONSTRAINT uq_idempotent_requests_project_key UNIQUE (project, key));
CREATE INDEX ix_idempotent_requests_created_at ON idempotent_requests (created_at);
CREATE TABLE reindexings (
    store_id VARCHAR(32) NOT NULL, target_id VARCHAR(32) NOT NULL,
    anchor_set_id VARCHAR(32) NOT NULL, state VARCHAR(20) NOT NULL, plan JSON NOT NULL,
    maps VARCHAR(64) NOT NULL, position JSON NOT NULL, found JSON NOT NULL, error JSON,
    job_id VARCHAR(32), updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE, id VARCHAR(32) NOT NULL, project VARCHAR(100) NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_reindexings PRIMARY KEY (id),
    CONSTRAINT fk_reindexings_store_id_stores
        FOREIGN KEY(store_id) REFERENCES stores (id) ON DELETE CASCADE,
    CONSTRAINT fk_reindexings_target_id_encoders FOREIGN KEY(target_id) REFERENCES encoders (id),
    CONSTRAINT fk_reindexings_anchor_set_id_anchor_sets
        FOREIGN KEY(anchor_set_id) REFERENCES anchor_sets (id));
CREATE INDEX ix_reindexings_anchor_set_id ON reindexings (anchor_set_id);
CREATE INDEX ix_reindexings_project_created_at ON reindexings (project, created_at);
CREATE INDEX ix_reindexings_store_id ON reindexings (store_id);
CREATE INDEX ix_reindexings_target_id ON reindexings (target_id);
CREATE UNIQUE INDEX uq_reindexings_store_id ON reindexings (store_id) WHERE ended_at IS NULL;
ALTER TABLE translators ADD COLUMN role VARCHAR(20);
UPDATE alembic_version SET version_num = '0010';
INSERT INTO encoders (id, project, created_at, name, kind, dim, modality, options)
    VALUES ('e', 'p', '2026-01-02 03:04:05', 'e', 'external', 2, 'text', '{}');
INSERT INTO heads (id, project, created_at, name, kind, dim, classes, outputs, settings, blob)
    VALUES ('h', 'p', '2026-01-02 03:04:05', 'h', 'linear', 2, '[]', 1, '{}', 'b');
INSERT INTO aliases (id, project, created_at, name, model, encoder_id, head_id)
    VALUES ('of-encoder', 'p', '2026-01-02 03:04:05', 'x', 'e', 'e', NULL),
    ('of-head', 'p', '2026-01-02 03:04:05', 'y', 'h', NULL, 'h');
INSERT INTO anchor_sets (id, project, created_at, name, size)
    VALUES ('a', 'p', '2026-01-02 03:04:05', 'a', 3);
INSERT INTO spaces (id, project, created_at, anchor_set_id, encoder_id, version, blob, health)
    VALUES ('sp', 'p', '2026-01-02 03:04:05', 'a', 'e', 1, 'b', '{}');
INSERT INTO stores (id, project, created_at, name, kind, address, collection, options, encoder_id)
    VALUES ('s', 'p', '2026-01-02 03:04:05', 's', 'pgvector', 'main', 'c', '{}', 'e');
INSERT INTO reindexings VALUES ('s', 'e', 'a', 'open',
    '{"method": "graded", "options": {"centre": true},
    "most_latency_ms": 5, "promise": {"recall": 0.5}}', 'm',
    '{"rows": 3, "held": {"token": "t"}}', '{}', NULL, NULL, '2026-01-02 03:04:05', NULL, 'r', 'p',
    '2026-01-02 03:04:05');
INSERT INTO idempotent_requests VALUES ('k', 'f', 'c', '2026-01-02 03:04:05', 'made', 'i', 'p',
    '2026-01-02 03:04:05')
"""


def test_a_database_of_aef478d_is_upgraded_once_with_its_rows(database_url):
    command.upgrade(alembic_config(database_url), "0011")
    kind = "DATETIME" if database_url.startswith("sqlite") else "TIMESTAMP WITH TIME ZONE"
    statements = OLD_TABLES.replace("TIMESTAMP WITH TIME ZONE", kind).split(";")
    look(database_url, lambda old: [old.execute(text(each)) for each in statements])
    db = Database(database_url)
    with db.transaction() as session:
        fits = {
            "kept": ("graded", {"ridge": 1.0, "centre": True}),
            "affine": ("affine", {}),
            "uncentred": ("graded", {"centre": False}),
        }
        session.add_all(
            tables.TranslatorRow(
                project="p",
                content=name,
                source_id="sp",
                target_id="sp",
                method=method,
                options=options,
            )
            for name, (method, options) in fits.items()
        )
        session.execute(text("UPDATE stores SET kind = 'files'"))
    with pytest.raises(SchemaOutdated):
        db.upgrade()
    with pytest.raises(SystemExit, match=r"stores/s \(project p, kind files\)"):
        upgrade(database_url)
    with db.transaction() as session:
        session.execute(text("UPDATE stores SET kind = 'pgvector'"))
    with pytest.raises(SystemExit, match=r"Finish or abandon .*: r"):
        upgrade(database_url)
    with db.transaction() as session:
        session.execute(text("UPDATE reindexings SET ended_at = '2026-01-03 03:04:05'"))
    upgrade(database_url)
    db.upgrade()
    db.require_schema()
    assert look(database_url, difference) == []
    with db.transaction() as session:
        row = session.scalars(select(tables.MigrationRow)).one()
        assert (row.position, row.lease, row.store.encoder.name) == ({"rows": 3}, None, "e")
        names = {"max_latency_ms": 5, "estimate": {"recall": 0.5}}
        assert row.plan == {"method": "graded", "options": {}, **names}
        request = session.scalars(select(tables.IdempotentRequestRow)).one()
        assert (request.key, request.lease, request.made) == ("k", "c", "made")
        assert [each.name for each in session.scalars(select(tables.AliasRow))] == ["x"]
        [fitted] = session.scalars(select(tables.TranslatorRow)).all()
        assert (fitted.content, fitted.options) == ("kept", {"ridge": 1.0})
    with pytest.raises(SystemExit, match="0018"):
        upgrade(database_url)
    db.close()
