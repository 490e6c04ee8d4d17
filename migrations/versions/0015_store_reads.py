"""A table of the rows of stores that native scores were read for.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "store_reads",
        sa.Column("store_id", sa.String(length=32), nullable=False),
        sa.Column("encoder_id", sa.String(length=32), nullable=False),
        sa.Column("row_id", sa.String(length=64), nullable=False),
        sa.Column("row", sa.JSON(), nullable=False),
        sa.Column("read_at", sa.BigInteger(), nullable=False),
        sa.Column("is_native", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(
            ["store_id"], ["stores.id"], name="fk_store_reads_store_id_stores", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["encoder_id"],
            ["encoders.id"],
            name="fk_store_reads_encoder_id_encoders",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("store_id", "encoder_id", "row_id", name="pk_store_reads"),
    )
    op.create_index(
        "ix_store_reads_store_id_encoder_id_read_at",
        "store_reads",
        ["store_id", "encoder_id", "read_at"],
    )
