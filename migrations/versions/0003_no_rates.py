"""keys have no rates: a proxy in front of the service limits requests

Revision ID: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as table:
        table.drop_column("rate_limit")


def downgrade() -> None:
    op.add_column("api_keys", sa.Column("rate_limit", sa.String(length=100), nullable=True))
