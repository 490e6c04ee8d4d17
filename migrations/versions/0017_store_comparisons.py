"""A table of the sums of compared searches.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "store_comparisons",
        sa.Column("store_id", sa.String(length=32), nullable=False),
        sa.Column("target_id", sa.String(length=32), nullable=False),
        sa.Column("mode", sa.String(length=20), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["store_id"],
            ["stores.id"],
            name="fk_store_comparisons_store_id_stores",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["target_id"],
            ["encoders.id"],
            name="fk_store_comparisons_target_id_encoders",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "store_id",
            "target_id",
            "mode",
            "day",
            "name",
            name="pk_store_comparisons",
        ),
    )
