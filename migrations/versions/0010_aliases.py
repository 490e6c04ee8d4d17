"""aliases

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

#: what a model's id names, by the column that refers to it
REFERENCES = {
    "encoder_id": "encoders",
    "target_id": "encoders",
    "head_id": "heads",
    "anchor_set_id": "anchor_sets",
}


def upgrade() -> None:
    op.create_table(
        "aliases",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("model", sa.String(length=400), nullable=False),
        *(sa.Column(column, sa.String(length=32), nullable=True) for column in REFERENCES),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        *(
            sa.ForeignKeyConstraint(
                [column], [f"{table}.id"], name=op.f(f"fk_aliases_{column}_{table}")
            )
            for column, table in REFERENCES.items()
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aliases")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_aliases_project_name")),
    )
    for column in REFERENCES:
        op.create_index(op.f(f"ix_aliases_{column}"), "aliases", [column])


def downgrade() -> None:
    op.drop_table("aliases")
