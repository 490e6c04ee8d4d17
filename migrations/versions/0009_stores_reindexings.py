"""stores and reindexings

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def owned() -> list[sa.Column]:
    return [
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    ]


def upgrade() -> None:
    op.create_table(
        "stores",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("address", sa.String(length=100), nullable=False),
        sa.Column("collection", sa.String(length=200), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("encoder_id", sa.String(length=32), nullable=False),
        *owned(),
        sa.ForeignKeyConstraint(
            ["encoder_id"], ["encoders.id"], name=op.f("fk_stores_encoder_id_encoders")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stores")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_stores_project_name")),
    )
    op.create_index(op.f("ix_stores_encoder_id"), "stores", ["encoder_id"])
    op.create_table(
        "reindexings",
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
        *owned(),
        sa.ForeignKeyConstraint(
            ["store_id"],
            ["stores.id"],
            name=op.f("fk_reindexings_store_id_stores"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["target_id"], ["encoders.id"], name=op.f("fk_reindexings_target_id_encoders")
        ),
        sa.ForeignKeyConstraint(
            ["anchor_set_id"],
            ["anchor_sets.id"],
            name=op.f("fk_reindexings_anchor_set_id_anchor_sets"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reindexings")),
    )
    for column in ("store_id", "target_id", "anchor_set_id"):
        op.create_index(op.f(f"ix_reindexings_{column}"), "reindexings", [column])
    op.create_index("ix_reindexings_project_created_at", "reindexings", ["project", "created_at"])
    op.create_index(
        "uq_reindexings_store_id",
        "reindexings",
        ["store_id"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_table("reindexings")
    op.drop_table("stores")
