"""versions of anchor sets, roles of their items, samples of stores, weights of translators

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

ONE_A_SET = "uq_spaces_anchor_set_id_encoder_id"
ONE_A_VERSION = "uq_spaces_anchor_set_id_encoder_id_version"


def version() -> sa.Column:
    """Return the column; its default is for processes of the version before."""
    return sa.Column("version", sa.Integer(), nullable=False, server_default="1")


def upgrade() -> None:
    with op.batch_alter_table("anchor_sets", schema=None) as batch_op:
        batch_op.add_column(version())
        batch_op.add_column(sa.Column("roles", sa.JSON(), nullable=True))
    with op.batch_alter_table("spaces", schema=None) as batch_op:
        batch_op.add_column(version())
        batch_op.add_column(sa.Column("sample", sa.String(length=64), nullable=True))
        batch_op.add_column(sa.Column("sample_size", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("store_size", sa.BigInteger(), nullable=True))
        batch_op.drop_constraint(ONE_A_SET, type_="unique")
        batch_op.create_unique_constraint(ONE_A_VERSION, ["anchor_set_id", "encoder_id", "version"])
    with op.batch_alter_table("translators", schema=None) as batch_op:
        batch_op.add_column(sa.Column("role", sa.String(length=20), nullable=True))
        batch_op.add_column(sa.Column("weights", sa.String(length=64), nullable=True))
    with op.batch_alter_table("contracts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("index", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    # The version before has one space for each encoder of a set, and no weights.
    connection = op.get_bind()
    schema = sa.MetaData()
    schema.reflect(connection, only=["anchor_sets", "spaces", "translators", "contracts"])
    sets, spaces = schema.tables["anchor_sets"], schema.tables["spaces"]
    replaced = (
        sa.select(spaces.c.id)
        .join(sets, sets.c.id == spaces.c.anchor_set_id)
        .where(spaces.c.version != sets.c.version)
    )
    for table in (schema.tables["translators"], schema.tables["contracts"]):
        either = table.c.source_id.in_(replaced) | table.c.target_id.in_(replaced)
        connection.execute(table.delete().where(either))
    connection.execute(spaces.delete().where(spaces.c.id.in_(replaced)))
    translators = schema.tables["translators"]
    connection.execute(translators.delete().where(translators.c.weights.is_not(None)))

    with op.batch_alter_table("contracts", schema=None) as batch_op:
        batch_op.drop_column("index")
    with op.batch_alter_table("translators", schema=None) as batch_op:
        batch_op.drop_column("weights")
        batch_op.drop_column("role")
    with op.batch_alter_table("spaces", schema=None) as batch_op:
        batch_op.drop_constraint(ONE_A_VERSION, type_="unique")
        batch_op.create_unique_constraint(ONE_A_SET, ["anchor_set_id", "encoder_id"])
        batch_op.drop_column("store_size")
        batch_op.drop_column("sample_size")
        batch_op.drop_column("sample")
        batch_op.drop_column("version")
    with op.batch_alter_table("anchor_sets", schema=None) as batch_op:
        batch_op.drop_column("roles")
        batch_op.drop_column("version")
