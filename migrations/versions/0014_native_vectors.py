"""Tables of the vectors that encoders made of texts, and of the texts that projects had embedded.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "native_vectors",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("space", sa.String(length=32), nullable=False),
        sa.Column("role", sa.String(length=10), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.Column("read_hour", sa.Integer(), nullable=False),
        sa.Column("store_id", sa.String(length=32), nullable=True),
        sa.Column("row_id", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("project", "space", "role", "digest", name="pk_native_vectors"),
    )
    op.create_index("ix_native_vectors_read_hour", "native_vectors", ["read_hour"])
    op.create_index("ix_native_vectors_store_id_row_id", "native_vectors", ["store_id", "row_id"])
    op.create_table(
        "native_spending",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("minute", sa.Integer(), nullable=False),
        sa.Column("minute_texts", sa.Integer(), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("day_texts", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("project", name="pk_native_spending"),
    )
