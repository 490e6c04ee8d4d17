"""columns of anchor sets go: roles of items, and the pairs of a bootstrap

Revision ID: 0002

Databases of 27 and 28 November 2026 say that they have revision 0001, and have different tables: it
was edited four times after it had landed. Those whose aliases follow stores are upgraded, and older
ones are refused.
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if "store_id" not in names_of_columns("aliases"):
        raise CommandError("its tables are older than 28 November 2026")
    with op.batch_alter_table("anchor_sets") as table:
        for name in sorted({"roles", "pairs"} & names_of_columns("anchor_sets")):
            table.drop_column(name)


def names_of_columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
