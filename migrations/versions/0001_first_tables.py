"""first tables

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "anchor_sets",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_anchor_sets")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_anchor_sets_project_name")),
    )
    op.create_table(
        "encoders",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("dim", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("revision", sa.String(length=100), nullable=True),
        sa.Column("modality", sa.String(length=20), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_encoders")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_encoders_project_name")),
    )
    op.create_table(
        "jobs",
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_project_created_at", ["project", "created_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_state"), ["state"], unique=False)

    op.create_table(
        "heads",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("dim", sa.Integer(), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("blob", sa.String(length=64), nullable=False),
        sa.Column("encoder_id", sa.String(length=32), nullable=True),
        sa.Column("anchor_set_id", sa.String(length=32), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["anchor_set_id"], ["anchor_sets.id"], name=op.f("fk_heads_anchor_set_id_anchor_sets")
        ),
        sa.ForeignKeyConstraint(
            ["encoder_id"], ["encoders.id"], name=op.f("fk_heads_encoder_id_encoders")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_heads")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_heads_project_name")),
    )
    with op.batch_alter_table("heads", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_heads_anchor_set_id"), ["anchor_set_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_heads_encoder_id"), ["encoder_id"], unique=False)

    op.create_table(
        "spaces",
        sa.Column("anchor_set_id", sa.String(length=32), nullable=False),
        sa.Column("encoder_id", sa.String(length=32), nullable=False),
        sa.Column("blob", sa.String(length=64), nullable=False),
        sa.Column("health", sa.JSON(), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["anchor_set_id"],
            ["anchor_sets.id"],
            name=op.f("fk_spaces_anchor_set_id_anchor_sets"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["encoder_id"], ["encoders.id"], name=op.f("fk_spaces_encoder_id_encoders")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_spaces")),
        sa.UniqueConstraint(
            "anchor_set_id", "encoder_id", name=op.f("uq_spaces_anchor_set_id_encoder_id")
        ),
    )
    with op.batch_alter_table("spaces", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_spaces_encoder_id"), ["encoder_id"], unique=False)

    op.create_table(
        "translators",
        sa.Column("content", sa.String(length=40), nullable=False),
        sa.Column("source_id", sa.String(length=32), nullable=False),
        sa.Column("target_id", sa.String(length=32), nullable=False),
        sa.Column("method", sa.String(length=40), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["source_id"],
            ["spaces.id"],
            name=op.f("fk_translators_source_id_spaces"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["target_id"],
            ["spaces.id"],
            name=op.f("fk_translators_target_id_spaces"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_translators")),
        sa.UniqueConstraint(
            "project",
            "content",
            "source_id",
            "target_id",
            name=op.f("uq_translators_project_content_source_id_target_id"),
        ),
    )
    with op.batch_alter_table("translators", schema=None) as batch_op:
        batch_op.create_index(
            "ix_translators_project_content", ["project", "content"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_translators_source_id"), ["source_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_translators_target_id"), ["target_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("translators", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_translators_target_id"))
        batch_op.drop_index(batch_op.f("ix_translators_source_id"))
        batch_op.drop_index("ix_translators_project_content")

    op.drop_table("translators")
    with op.batch_alter_table("spaces", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_spaces_encoder_id"))

    op.drop_table("spaces")
    with op.batch_alter_table("heads", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_heads_encoder_id"))
        batch_op.drop_index(batch_op.f("ix_heads_anchor_set_id"))

    op.drop_table("heads")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_jobs_state"))
        batch_op.drop_index("ix_jobs_project_created_at")

    op.drop_table("jobs")
    op.drop_table("encoders")
    op.drop_table("anchor_sets")
