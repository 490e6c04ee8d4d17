"""the schema

Revision ID: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "anchor_sets",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=True),
        sa.Column("inputs", sa.String(length=64), nullable=True),
        sa.Column("store_rows", sa.String(length=64), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_anchor_sets")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_anchor_sets_project_name")),
    )
    op.create_table(
        "api_keys",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("rate_limit", sa.String(length=100), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_index("ix_api_keys_project_created_at", "api_keys", ["project", "created_at"])

    op.create_table(
        "audit",
        sa.Column("action", sa.String(length=20), nullable=False),
        sa.Column("resource", sa.String(length=20), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=True),
        sa.Column("origin", sa.String(length=100), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_created_at", "audit", ["created_at"])
    op.create_index("ix_audit_project_created_at", "audit", ["project", "created_at"])

    op.create_table(
        "encoders",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("dim", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("revision", sa.String(length=100), nullable=True),
        sa.Column("modality", sa.String(length=20), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("identity", sa.JSON(), nullable=True),
        sa.Column("comparisons", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("watched_day", sa.Integer(), nullable=True),
        sa.Column("last_check", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_encoders")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_encoders_project_name")),
    )
    op.create_table(
        "jobs",
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("checkpoint", sa.String(length=64), nullable=True),
        sa.Column("furthest", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease", sa.String(length=32), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(
        "ix_jobs_due_at",
        "jobs",
        ["due_at"],
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )
    op.create_index(
        "ix_jobs_finished_at",
        "jobs",
        ["finished_at"],
        sqlite_where=sa.text("finished_at IS NOT NULL"),
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_lease",
        "jobs",
        ["lease"],
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )
    op.create_index("ix_jobs_project_created_at", "jobs", ["project", "created_at"])
    op.create_index("ix_jobs_project_started_at", "jobs", ["project", "started_at"])

    op.create_table(
        "heads",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("dim", sa.Integer(), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("outputs", sa.Integer(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("blob", sa.String(length=64), nullable=False),
        sa.Column("encoder_id", sa.String(length=32), nullable=True),
        sa.Column("anchor_set_id", sa.String(length=32), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["anchor_set_id"], ["anchor_sets.id"], name=op.f("fk_heads_anchor_set_id_anchor_sets")
        ),
        sa.ForeignKeyConstraint(
            ["encoder_id"], ["encoders.id"], name=op.f("fk_heads_encoder_id_encoders")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_heads")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_heads_project_name")),
    )
    op.create_index(op.f("ix_heads_anchor_set_id"), "heads", ["anchor_set_id"])
    op.create_index(op.f("ix_heads_encoder_id"), "heads", ["encoder_id"])

    op.create_table(
        "pools",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("encoder_id", sa.String(length=32), nullable=False),
        sa.Column("items", sa.Integer(), nullable=False),
        sa.Column("pieces", sa.JSON(), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["encoder_id"], ["encoders.id"], name=op.f("fk_pools_encoder_id_encoders")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pools")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_pools_project_name")),
    )
    op.create_index(op.f("ix_pools_encoder_id"), "pools", ["encoder_id"])

    op.create_table(
        "spaces",
        sa.Column("anchor_set_id", sa.String(length=32), nullable=False),
        sa.Column("encoder_id", sa.String(length=32), nullable=False),
        sa.Column("blob", sa.String(length=64), nullable=False),
        sa.Column("sample", sa.String(length=64), nullable=True),
        sa.Column("sample_size", sa.Integer(), nullable=True),
        sa.Column("store_size", sa.BigInteger(), nullable=True),
        sa.Column("health", sa.JSON(), nullable=False),
        sa.Column("is_baseline", sa.Boolean(), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["anchor_set_id"],
            ["anchor_sets.id"],
            name=op.f("fk_spaces_anchor_set_id_anchor_sets"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["encoder_id"], ["encoders.id"], name=op.f("fk_spaces_encoder_id_encoders")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_spaces")),
        sa.UniqueConstraint(
            "anchor_set_id", "encoder_id", name=op.f("uq_spaces_anchor_set_id_encoder_id")
        ),
    )
    op.create_index(op.f("ix_spaces_encoder_id"), "spaces", ["encoder_id"])

    op.create_table(
        "stores",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("address", sa.String(length=100), nullable=False),
        sa.Column("collection", sa.String(length=200), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("encoder_id", sa.String(length=32), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["encoder_id"], ["encoders.id"], name=op.f("fk_stores_encoder_id_encoders")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stores")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_stores_project_name")),
    )
    op.create_index(op.f("ix_stores_encoder_id"), "stores", ["encoder_id"])

    op.create_table(
        "aliases",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("model", sa.String(length=400), nullable=True),
        sa.Column("encoder_id", sa.String(length=32), nullable=True),
        sa.Column("target_id", sa.String(length=32), nullable=True),
        sa.Column("anchor_set_id", sa.String(length=32), nullable=True),
        sa.Column("store_id", sa.String(length=32), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["anchor_set_id"], ["anchor_sets.id"], name=op.f("fk_aliases_anchor_set_id_anchor_sets")
        ),
        sa.ForeignKeyConstraint(
            ["encoder_id"], ["encoders.id"], name=op.f("fk_aliases_encoder_id_encoders")
        ),
        sa.ForeignKeyConstraint(
            ["target_id"], ["encoders.id"], name=op.f("fk_aliases_target_id_encoders")
        ),
        sa.ForeignKeyConstraint(
            ["store_id"], ["stores.id"], name=op.f("fk_aliases_store_id_stores")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aliases")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_aliases_project_name")),
    )
    op.create_index(op.f("ix_aliases_anchor_set_id"), "aliases", ["anchor_set_id"])
    op.create_index(op.f("ix_aliases_encoder_id"), "aliases", ["encoder_id"])
    op.create_index(op.f("ix_aliases_store_id"), "aliases", ["store_id"])
    op.create_index(op.f("ix_aliases_target_id"), "aliases", ["target_id"])

    op.create_table(
        "native_vectors",
        sa.Column("encoder_id", sa.String(length=32), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("store_id", sa.String(length=32), nullable=True),
        sa.Column("row_id", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(
            ["encoder_id"],
            ["encoders.id"],
            name=op.f("fk_native_vectors_encoder_id_encoders"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["store_id"],
            ["stores.id"],
            name=op.f("fk_native_vectors_store_id_stores"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("encoder_id", "digest", name=op.f("pk_native_vectors")),
    )
    op.create_index(op.f("ix_native_vectors_made_at"), "native_vectors", ["made_at"])
    op.create_index("ix_native_vectors_store_id_row_id", "native_vectors", ["store_id", "row_id"])

    op.create_table(
        "migrations",
        sa.Column("store_id", sa.String(length=32), nullable=False),
        sa.Column("target_id", sa.String(length=32), nullable=False),
        sa.Column("anchor_set_id", sa.String(length=32), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("maps", sa.String(length=64), nullable=True),
        sa.Column("position", sa.JSON(), nullable=False),
        sa.Column("found", sa.JSON(), nullable=False),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("job_id", sa.String(length=32), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease", sa.String(length=32), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["anchor_set_id"],
            ["anchor_sets.id"],
            name=op.f("fk_migrations_anchor_set_id_anchor_sets"),
        ),
        sa.ForeignKeyConstraint(
            ["store_id"],
            ["stores.id"],
            name=op.f("fk_migrations_store_id_stores"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["target_id"], ["encoders.id"], name=op.f("fk_migrations_target_id_encoders")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_migrations")),
    )
    op.create_index(op.f("ix_migrations_anchor_set_id"), "migrations", ["anchor_set_id"])
    op.create_index("ix_migrations_project_created_at", "migrations", ["project", "created_at"])
    op.create_index(op.f("ix_migrations_store_id"), "migrations", ["store_id"])
    op.create_index(op.f("ix_migrations_target_id"), "migrations", ["target_id"])
    op.create_index(
        "uq_migrations_store_id",
        "migrations",
        ["store_id"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )

    op.create_table(
        "translators",
        sa.Column("content", sa.String(length=40), nullable=False),
        sa.Column("source_id", sa.String(length=32), nullable=False),
        sa.Column("target_id", sa.String(length=32), nullable=False),
        sa.Column("method", sa.String(length=40), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("weights", sa.String(length=64), nullable=True),
        sa.Column("report", sa.JSON(), nullable=True),
        sa.Column(
            "used_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("(CURRENT_TIMESTAMP)"),
            nullable=False,
        ),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["source_id"],
            ["spaces.id"],
            name=op.f("fk_translators_source_id_spaces"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["target_id"],
            ["spaces.id"],
            name=op.f("fk_translators_target_id_spaces"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_translators")),
        sa.UniqueConstraint(
            "project",
            "content",
            "source_id",
            "target_id",
            name=op.f("uq_translators_project_content_source_id_target_id"),
        ),
    )
    op.create_index("ix_translators_project_content", "translators", ["project", "content"])
    op.create_index("ix_translators_project_created_at", "translators", ["project", "created_at"])
    op.create_index(op.f("ix_translators_source_id"), "translators", ["source_id"])
    op.create_index(op.f("ix_translators_target_id"), "translators", ["target_id"])
    op.create_index(op.f("ix_translators_used_at"), "translators", ["used_at"])
