"""pools of their own; where a grown set's anchors were found

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pools",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("encoder_id", sa.String(length=32), nullable=False),
        sa.Column("items", sa.Integer(), nullable=False),
        sa.Column("pieces", sa.JSON(), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["encoder_id"], ["encoders.id"], name=op.f("fk_pools_encoder_id_encoders")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pools")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_pools_project_name")),
    )
    with op.batch_alter_table("pools", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_pools_encoder_id"), ["encoder_id"], unique=False)
    with op.batch_alter_table("anchor_sets", schema=None) as batch_op:
        batch_op.add_column(sa.Column("pairs", sa.String(length=64), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("anchor_sets", schema=None) as batch_op:
        batch_op.drop_column("pairs")
    with op.batch_alter_table("pools", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_pools_encoder_id"))
    op.drop_table("pools")
