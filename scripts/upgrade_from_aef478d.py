"""Upgrades a database of commit aef478d to the first schema that later versions migrate from.

    python scripts/upgrade_from_aef478d.py [DATABASE_URL]

Stop the API and all workers, and make a backup. Without a URL, the settings name the database.
It refuses a database that has stores or heads of kinds that no longer exist, unfinished jobs, or
unfinished reindexings, and names them. It
deletes the records of translators whose method or option no longer exists, and names them: fit
these pairs again. A pair that is fitted again may get another id. It deletes aliases of heads,
which only a removed protocol used, and names them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import (
    JSON,
    URL,
    Column,
    Connection,
    DateTime,
    String,
    column,
    delete,
    select,
    table,
    text,
    update,
)
from sqlalchemy.types import TypeEngine

from app.settings import Settings
from app.storage.db import is_sqlite, make_engine, with_driver
from app.wiring import make_database

OLD, NEW = "0010", "0011"
REMOVED_METHODS = ("affine", "reduced-rank")
#: the option `landmarks` of `kernel` is now always this
LANDMARKS = 2048
PLANS = table(
    "reindexings",
    column("id"),
    column("ended_at"),
    column("plan", JSON),
    column("position", JSON),
)


def upgrade(url: str | URL) -> None:
    """Change the schema in one transaction. Raises SystemExit for a database of another version."""
    engine = make_engine(with_driver(url))
    try:
        with engine.connect() as connection:
            if is_sqlite(engine.url):
                connection.exec_driver_sql("PRAGMA foreign_keys=OFF")  # a table is copied
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            found = MigrationContext.configure(connection).get_current_heads()
            if found != (OLD,):
                raise SystemExit(f"Expected revision {OLD}, found {', '.join(found) or 'none'}.")
            _refuse_removed_kinds(connection)
            _change(connection)
            _convert_translators(connection)
            connection.execute(text("UPDATE alembic_version SET version_num = :new"), {"new": NEW})
            connection.commit()
    finally:
        engine.dispose()


def _refuse_removed_kinds(connection: Connection) -> None:
    """Raises SystemExit naming the stores and heads that the new version cannot open."""
    removed = {"stores": ("files", "qdrant-edge"), "heads": ("onnx",)}
    found = []
    for name, kinds in removed.items():
        rows = table(name, column("project"), column("name"), column("kind"))
        query = select(rows.c.project, rows.c.name, rows.c.kind).where(rows.c.kind.in_(kinds))
        found += [
            f"{name}/{each.name} (project {each.project}, kind {each.kind})"
            for each in connection.execute(query)
        ]
    if found:
        raise SystemExit(
            f"Delete these with the old version first, and run the script again: {', '.join(found)}"
        )
    open_plans = select(PLANS.c.id).where(PLANS.c.ended_at.is_(None))
    if begun := connection.execute(open_plans).scalars().all():
        raise SystemExit(
            "Finish or abandon these reindexings with the old version first, because this version "
            f"cannot continue what it left in the stores: {', '.join(begun)}"
        )
    jobs = table("jobs", column("id"), column("state"))
    unfinished = select(jobs.c.id).where(jobs.c.state.in_(("queued", "running")))
    if waiting := connection.execute(unfinished).scalars().all():
        raise SystemExit(
            f"Let these jobs end, or cancel them, with the old version first: {', '.join(waiting)}"
        )


def _kept_options(fit: Mapping[str, Any]) -> dict[str, Any] | None:
    """The options of a fit without the removed ones; None if it can no longer be made."""
    options = dict(fit.get("options") or {})
    centred, landmarks = options.pop("centre", True), options.pop("landmarks", LANDMARKS)
    if fit.get("method") in REMOVED_METHODS or not centred or landmarks != LANDMARKS:
        return None
    return options


def _convert_translators(connection: Connection) -> None:
    """Drop options that had one value in use, and records of methods that no longer exist."""
    rows = table(
        "translators", column("id"), column("content"), column("method"), column("options", JSON)
    )
    for each in connection.execute(select(rows)).all():
        options = _kept_options({"method": each.method, "options": each.options})
        if options is None:
            connection.execute(delete(rows).where(rows.c.id == each.id))
            print(f"Deleted the record of translator {each.content} (method {each.method}).")
        elif options != each.options:
            connection.execute(update(rows).where(rows.c.id == each.id).values(options=options))


def _change(connection: Connection) -> None:
    op = Operations(MigrationContext.configure(connection))
    lease: dict[str, TypeEngine[object]] = {
        "lease": String(32),
        "lease_until": DateTime(timezone=True),
    }
    renamed = {"claim": "lease", "claimed_until": "lease_until"}
    with op.batch_alter_table("idempotent_requests") as requests:
        for old, new in renamed.items():
            requests.alter_column(old, new_column_name=new, existing_type=lease[new], nullable=True)
    with op.batch_alter_table("translators") as translators:
        translators.drop_column("role")
    of_heads = table("aliases", column("name"), column("head_id"))
    for each in connection.execute(select(of_heads).where(of_heads.c.head_id.is_not(None))).all():
        print(f"Deleted the alias {each.name}, whose model is a head.")
    connection.execute(delete(of_heads).where(of_heads.c.head_id.is_not(None)))
    with op.batch_alter_table("aliases") as aliases:
        aliases.drop_index("ix_aliases_head_id")
        aliases.drop_constraint("fk_aliases_head_id_heads", type_="foreignkey")
        aliases.drop_column("head_id")
    for name, kind in lease.items():
        op.add_column("reindexings", Column(name, kind))
    for row in connection.execute(select(PLANS)).all():
        rest = {name: each for name, each in row.position.items() if name != "held"}
        options = _kept_options(row.plan)
        plan = row.plan if options is None else {**row.plan, "options": options}
        changed = update(PLANS).where(PLANS.c.id == row.id).values(position=rest, plan=plan)
        connection.execute(changed)


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else make_database(Settings()).url
    upgrade(url)
