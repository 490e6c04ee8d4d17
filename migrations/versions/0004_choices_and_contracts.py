"""why auto chose a translator; what translators between two spaces must promise

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "contracts",
        sa.Column("source_id", sa.String(length=32), nullable=False),
        sa.Column("target_id", sa.String(length=32), nullable=False),
        sa.Column("min_quality", sa.JSON(), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["source_id"],
            ["spaces.id"],
            name=op.f("fk_contracts_source_id_spaces"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["target_id"],
            ["spaces.id"],
            name=op.f("fk_contracts_target_id_spaces"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_contracts")),
        sa.UniqueConstraint(
            "source_id", "target_id", name=op.f("uq_contracts_source_id_target_id")
        ),
    )
    with op.batch_alter_table("contracts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_contracts_target_id"), ["target_id"], unique=False)
    with op.batch_alter_table("translators", schema=None) as batch_op:
        batch_op.add_column(sa.Column("choices", sa.JSON(), nullable=True))
    heads = sa.table("heads", sa.column("id"), sa.column("settings", sa.JSON()))
    connection = op.get_bind()
    for row in connection.execute(sa.select(heads.c.id, heads.c.settings)).all():
        # Until now a whitened relative head without a ridge read vectors of ridge 1; from now on it would of the anchors' own.
        if row.settings.get("encode_power", 0.0) > 0.0 and row.settings.get("ridge") is None:
            connection.execute(
                heads.update()
                .where(heads.c.id == row.id)
                .values(settings={**row.settings, "ridge": 1.0})
            )
    op.execute(
        "UPDATE translators SET report = NULL"
    )  # they are measured anew, with more in them, when they are asked for


def downgrade() -> None:
    op.execute("UPDATE translators SET report = NULL")
    with op.batch_alter_table("translators", schema=None) as batch_op:
        batch_op.drop_column("choices")
    with op.batch_alter_table("contracts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_contracts_target_id"))
    op.drop_table("contracts")
