"""the words of the field: migrations, estimates

Revision ID: 0012
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

NAMES = {
    "promise": "estimate",
    "promises": "estimates",
    "promised": "estimated",
    "min_right": "min_precision",
    "ask": "label_next",
    "most_latency_ms": "max_latency_ms",
    "reindexing": "migration",
}
#: names that mean this only in a plan and in the position of a run
PLAN_NAMES = {"estimates": "cost", **NAMES}
POSITION_NAMES = {"of": "total"}
DOCUMENTS = {
    "translators": ("report",),
    "anchor_sets": ("provenance",),
    "jobs": ("arguments", "result", "error"),
    "migrations": ("found", "error"),
}


def upgrade() -> None:
    op.create_table(
        "migrations",
        sa.Column("store_id", sa.String(length=32), nullable=False),
        sa.Column("target_id", sa.String(length=32), nullable=False),
        sa.Column("anchor_set_id", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("maps", sa.String(length=64), nullable=False),
        sa.Column("position", sa.JSON(), nullable=False),
        sa.Column("found", sa.JSON(), nullable=False),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("job_id", sa.String(length=32), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease", sa.String(length=32), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["anchor_set_id"],
            ["anchor_sets.id"],
            name=op.f("fk_migrations_anchor_set_id_anchor_sets"),
        ),
        sa.ForeignKeyConstraint(
            ["store_id"],
            ["stores.id"],
            name=op.f("fk_migrations_store_id_stores"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["target_id"], ["encoders.id"], name=op.f("fk_migrations_target_id_encoders")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_migrations")),
    )
    connection = op.get_bind()
    new = sa.Table("migrations", sa.MetaData(), autoload_with=connection)
    old = sa.table("reindexings", *(sa.column(each.name) for each in new.c))
    connection.execute(sa.insert(new).from_select(list(new.c.keys()), sa.select(*old.c)))
    op.drop_table("reindexings")
    op.create_index(op.f("ix_migrations_anchor_set_id"), "migrations", ["anchor_set_id"])
    op.create_index("ix_migrations_project_created_at", "migrations", ["project", "created_at"])
    op.create_index(op.f("ix_migrations_store_id"), "migrations", ["store_id"])
    op.create_index(op.f("ix_migrations_target_id"), "migrations", ["target_id"])
    op.create_index(
        "uq_migrations_store_id",
        "migrations",
        ["store_id"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.execute("UPDATE jobs SET kind = 'migrate' WHERE kind = 'reindex'")
    op.execute("UPDATE audit SET resource = 'migration' WHERE resource = 'reindexing'")
    for name, documents in DOCUMENTS.items():
        for document in documents:
            _rename(connection, name, document, NAMES)
    _rename(connection, "migrations", "plan", PLAN_NAMES)
    _rename(connection, "migrations", "position", POSITION_NAMES)


def _rename(connection: sa.Connection, name: str, document: str, names: dict[str, str]) -> None:
    """Rename keys in a column of JSON documents, row by row: a table may be large."""
    rows = sa.table(name, sa.column("id"), sa.column(document, sa.JSON(none_as_null=True)))
    content = rows.c[document]
    last = ""
    while True:
        page = sa.select(rows.c.id, content).where(rows.c.id > last).order_by(rows.c.id).limit(100)
        found = connection.execute(page).all()
        if not found:
            return
        for key, old in found:
            if old is not None and (new := _with_names(old, names)) != old:
                changed = sa.update(rows).where(rows.c.id == key).values({document: new})
                connection.execute(changed)
        last = found[-1].id


def _with_names(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(key, key): _with_names(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_names(each, names) for each in value]
    return value
