"""What encoders were compared with, and by how much they are better.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("encoders", sa.Column("comparisons", sa.JSON(), nullable=True))
