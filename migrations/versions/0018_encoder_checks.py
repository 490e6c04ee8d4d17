"""Checks of encoders for drift, and the rows of a store that anchors are.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("encoders", sa.Column("watched_day", sa.Integer(), nullable=True))
    op.add_column("encoders", sa.Column("last_check", sa.JSON(), nullable=True))
    op.add_column("encoders", sa.Column("accepted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("spaces", sa.Column("is_baseline", sa.Boolean(), nullable=True))
    op.add_column("anchor_sets", sa.Column("store_rows", sa.String(64), nullable=True))
