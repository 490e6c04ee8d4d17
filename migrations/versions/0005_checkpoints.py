"""where a job stands, so that another worker can go on from there

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("checkpoint", sa.String(length=64), nullable=True))
        batch_op.add_column(sa.Column("furthest", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.alter_column("furthest", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("furthest")
        batch_op.drop_column("checkpoint")
