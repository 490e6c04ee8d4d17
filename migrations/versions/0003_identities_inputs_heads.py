"""what an encoder's vectors depend on, anchor sets' inputs, heads of more kinds

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("encoders", schema=None) as batch_op:
        batch_op.add_column(sa.Column("identity", sa.JSON(), nullable=True))

    with op.batch_alter_table("anchor_sets", schema=None) as batch_op:
        batch_op.add_column(sa.Column("inputs", sa.String(length=64), nullable=True))

    with op.batch_alter_table("heads", schema=None) as batch_op:
        batch_op.add_column(sa.Column("outputs", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("settings", sa.JSON(), nullable=True))
    heads = sa.table(
        "heads",
        sa.column("id"),
        sa.column("classes", sa.JSON()),
        sa.column("outputs"),
        sa.column("settings", sa.JSON()),
    )
    connection = op.get_bind()
    for row in connection.execute(
        sa.select(heads.c.id, heads.c.classes)
    ).all():  # until now all heads were linear classifiers
        values = {"outputs": len(row.classes), "settings": {}}
        connection.execute(heads.update().where(heads.c.id == row.id).values(**values))
    with op.batch_alter_table("heads", schema=None) as batch_op:
        batch_op.alter_column("outputs", existing_type=sa.Integer(), nullable=False)
        batch_op.alter_column("settings", existing_type=sa.JSON(), nullable=False)


def downgrade() -> None:
    with op.batch_alter_table("heads", schema=None) as batch_op:
        batch_op.drop_column("settings")
        batch_op.drop_column("outputs")

    with op.batch_alter_table("anchor_sets", schema=None) as batch_op:
        batch_op.drop_column("inputs")

    with op.batch_alter_table("encoders", schema=None) as batch_op:
        batch_op.drop_column("identity")
