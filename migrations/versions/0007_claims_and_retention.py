"""indexes by which workers claim jobs and old rows are found; when a translator was last used

Revision ID: 0007
Revises: 0006
"""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

FINISHED = dict.fromkeys(("sqlite_where", "postgresql_where"), sa.text("finished_at IS NOT NULL"))
UNFINISHED = dict.fromkeys(("sqlite_where", "postgresql_where"), sa.text("finished_at IS NULL"))


def upgrade() -> None:
    # The version before pushed `due_at` into the future while a job waited for its message. Such a job is due at once, and a
    # running one as soon as its lease ends; only a job that waits for its next try keeps its moment.
    op.execute(
        "UPDATE jobs SET due_at = created_at WHERE state = 'running' OR (state = 'queued' AND attempts = 0)"
    )
    # From now on, an unfinished job is known by its null in `finished_at`.
    op.execute(
        "UPDATE jobs SET finished_at = created_at WHERE finished_at IS NULL AND state NOT IN ('queued', 'running')"
    )
    op.create_index("ix_jobs_due_at", "jobs", ["due_at"], **UNFINISHED)
    op.create_index("ix_jobs_lease", "jobs", ["lease"], **UNFINISHED)
    op.create_index("ix_jobs_finished_at", "jobs", ["finished_at"], **FINISHED)
    op.drop_index("ix_jobs_state", "jobs")
    op.create_index("ix_audit_created_at", "audit", ["created_at"])
    op.create_index("ix_idempotent_requests_created_at", "idempotent_requests", ["created_at"])

    # The default of the server is for processes of the version before, which still run during an upgrade.
    used_at = sa.Column(
        "used_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
    )
    with op.batch_alter_table("translators", schema=None) as batch_op:
        batch_op.add_column(used_at)
    translators = sa.table("translators", sa.column("used_at", sa.DateTime(timezone=True)))
    op.execute(translators.update().values(used_at=datetime.now(UTC)))
    op.create_index("ix_translators_used_at", "translators", ["used_at"])
    op.create_index("ix_translators_project_created_at", "translators", ["project", "created_at"])


def downgrade() -> None:
    op.drop_index("ix_translators_project_created_at", "translators")
    op.drop_index("ix_translators_used_at", "translators")
    with op.batch_alter_table("translators", schema=None) as batch_op:
        batch_op.drop_column("used_at")

    op.drop_index("ix_idempotent_requests_created_at", "idempotent_requests")
    op.drop_index("ix_audit_created_at", "audit")
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.drop_index("ix_jobs_finished_at", "jobs")
    op.drop_index("ix_jobs_lease", "jobs")
    op.drop_index("ix_jobs_due_at", "jobs")
