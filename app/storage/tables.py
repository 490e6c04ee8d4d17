"""All rows. Vectors are not here: a row names a blob by its content hash."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    DateTime,
    ForeignKey,
    Index,
    MetaData,
    String,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

NAME_LENGTH = 100


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC on every database: SQLite drops the zone, so it is put back when read."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def new_id() -> str:
    return uuid.uuid4().hex


def now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    """Every table."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Owned:
    """What every row has: an id, the project that owns it, and when it was made."""

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    project: Mapped[str] = mapped_column(String(NAME_LENGTH), default="default")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class EncoderRow(Owned, Base):
    __tablename__ = "encoders"
    __table_args__ = (UniqueConstraint("project", "name"),)

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    kind: Mapped[str] = mapped_column(String(40))
    dim: Mapped[int]
    model: Mapped[str | None] = mapped_column(String(200))
    revision: Mapped[str | None] = mapped_column(String(100))
    modality: Mapped[str] = mapped_column(String(20))
    #: the kind's own, as the client gave them
    options: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    #: everything that the vectors depend on, as it was when the encoder was registered; None for external ones
    identity: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class AnchorSetRow(Owned, Base):
    __tablename__ = "anchor_sets"
    __table_args__ = (UniqueConstraint("project", "name"),)

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    size: Mapped[int]
    #: where the anchors came from, when the service made them: a bootstrap job and its settings
    provenance: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    #: content hash of the items themselves, where they are kept: for encoders that are added later
    inputs: Mapped[str | None] = mapped_column(String(64))
    #: content hash of where each anchor was found, when it was: rows of the two pools, and how sure that is
    pairs: Mapped[str | None] = mapped_column(String(64))
    spaces: Mapped[list[SpaceRow]] = relationship(
        back_populates="anchor_set",
        cascade="all, delete-orphan",
        passive_deletes=True,
        order_by="SpaceRow.created_at",
        lazy="selectin",
    )


class SpaceRow(Owned, Base):
    """One encoder's embeddings of one anchor set."""

    __tablename__ = "spaces"
    __table_args__ = (UniqueConstraint("anchor_set_id", "encoder_id"),)

    anchor_set_id: Mapped[str] = mapped_column(ForeignKey("anchor_sets.id", ondelete="CASCADE"))
    encoder_id: Mapped[str] = mapped_column(ForeignKey("encoders.id"), index=True)
    #: content hash of the raw anchors (k, d), float32
    blob: Mapped[str] = mapped_column(String(64))
    health: Mapped[dict[str, Any]] = mapped_column(JSON)
    anchor_set: Mapped[AnchorSetRow] = relationship(back_populates="spaces", lazy="joined")
    encoder: Mapped[EncoderRow] = relationship(lazy="joined")


class PoolRow(Owned, Base):
    """Items of one encoder in no known order, for bootstraps; they come in pieces."""

    __tablename__ = "pools"
    __table_args__ = (UniqueConstraint("project", "name"),)

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    encoder_id: Mapped[str] = mapped_column(ForeignKey("encoders.id"), index=True)
    #: of all pieces together; it only grows, so that equal numbers mean equal pieces
    items: Mapped[int]
    #: [{"blob": content hash of (rows, d), float32, "rows": how many}, ...]; long, and read where it is asked for
    pieces: Mapped[list[dict[str, Any]]] = mapped_column(JSON, deferred=True)
    encoder: Mapped[EncoderRow] = relationship(lazy="joined")

    @property
    def nbytes(self) -> int:
        """What its vectors take where they are stored, as float32."""
        return 4 * self.items * self.encoder.dim


class TranslatorRow(Owned, Base):
    """How a translator was fitted, so that its id can be asked about later; the matrix itself can be recomputed."""

    __tablename__ = "translators"
    __table_args__ = (
        UniqueConstraint("project", "content", "source_id", "target_id"),
        Index("ix_translators_project_content", "project", "content"),
        Index("ix_translators_project_created_at", "project", "created_at"),
    )

    #: the public id: a content hash
    content: Mapped[str] = mapped_column(String(40))
    source_id: Mapped[str] = mapped_column(ForeignKey("spaces.id", ondelete="CASCADE"), index=True)
    target_id: Mapped[str] = mapped_column(ForeignKey("spaces.id", ondelete="CASCADE"), index=True)
    method: Mapped[str] = mapped_column(String(40))
    options: Mapped[dict[str, Any]] = mapped_column(JSON)
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    #: what auto was asked to prefer -> why it chose this one; None where it never did
    choices: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    #: the last time somebody fitted it or asked about it, at most a day too early; retention counts from here
    used_at: Mapped[datetime] = mapped_column(
        UtcDateTime, default=now, server_default=func.now(), index=True
    )
    source: Mapped[SpaceRow] = relationship(foreign_keys=[source_id], lazy="joined")
    target: Mapped[SpaceRow] = relationship(foreign_keys=[target_id], lazy="joined")


class ContractRow(Owned, Base):
    """What every translator between two spaces must promise, or it is not served."""

    __tablename__ = "contracts"
    __table_args__ = (UniqueConstraint("source_id", "target_id"),)

    source_id: Mapped[str] = mapped_column(ForeignKey("spaces.id", ondelete="CASCADE"))
    target_id: Mapped[str] = mapped_column(ForeignKey("spaces.id", ondelete="CASCADE"), index=True)
    #: measure -> least value
    min_quality: Mapped[dict[str, float]] = mapped_column(JSON)
    source: Mapped[SpaceRow] = relationship(foreign_keys=[source_id], lazy="joined")
    target: Mapped[SpaceRow] = relationship(foreign_keys=[target_id], lazy="joined")


class HeadRow(Owned, Base):
    """A function of one encoder's vectors (absolute) or of relative vectors (an anchor set's): a classifier or a decoder."""

    __tablename__ = "heads"
    __table_args__ = (UniqueConstraint("project", "name"),)

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    kind: Mapped[str] = mapped_column(String(40))
    dim: Mapped[int]
    #: class names; empty for a head that answers numbers or images
    classes: Mapped[list[str]] = mapped_column(JSON)
    #: how many numbers it answers
    outputs: Mapped[int]
    #: the architecture of an MLP; what the vectors are brought to before it reads them, and what its numbers mean
    settings: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    blob: Mapped[str] = mapped_column(String(64))
    encoder_id: Mapped[str | None] = mapped_column(ForeignKey("encoders.id"), index=True)
    anchor_set_id: Mapped[str | None] = mapped_column(ForeignKey("anchor_sets.id"), index=True)
    encoder: Mapped[EncoderRow | None] = relationship(lazy="joined")
    anchor_set: Mapped[AnchorSetRow | None] = relationship(lazy="joined")


#: of partial indexes: workers ask for unfinished jobs twice a second, and most jobs have ended
_UNFINISHED: dict[str, Any] = dict.fromkeys(
    ("sqlite_where", "postgresql_where"), text("finished_at IS NULL")
)
_FINISHED: dict[str, Any] = dict.fromkeys(
    ("sqlite_where", "postgresql_where"), text("finished_at IS NOT NULL")
)


class JobRow(Owned, Base):
    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_project_created_at", "project", "created_at"),
        Index("ix_jobs_due_at", "due_at", **_UNFINISHED),
        Index("ix_jobs_lease", "lease", **_UNFINISHED),
        Index("ix_jobs_finished_at", "finished_at", **_FINISHED),
    )

    kind: Mapped[str] = mapped_column(String(40))
    state: Mapped[str] = mapped_column(String(20))
    #: the request, vectors replaced by their blobs' hashes
    arguments: Mapped[dict[str, Any]] = mapped_column(JSON)
    #: counts every change that a client can see: the id of its last event
    version: Mapped[int] = mapped_column(default=0)
    #: how often a worker has claimed it and not handed it back since it got further than ever: a checkpoint beyond `furthest`
    attempts: Mapped[int] = mapped_column(default=0)
    #: content hash of what its last checkpoint holds; None without one, and for an ended job
    checkpoint: Mapped[str | None] = mapped_column(String(64))
    #: the last step that a checkpoint has recorded
    furthest: Mapped[int] = mapped_column(default=0)
    #: who runs it: a token that only the claiming worker knows, good until `lease_until` unless renewed
    lease: Mapped[str | None] = mapped_column(String(32))
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: a queued job may be claimed from then on; the job that has been due for longest comes first
    due_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    #: {"done": steps, "total": steps, ...}
    progress: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    #: {"code": ..., "detail": ...} of a failed job, and what else its problem document would say
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: null while the job waits or runs
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ApiKeyRow(Owned, Base):
    """Who may call. The secret itself is never stored: only its SHA-256, which is enough for 256 random bits."""

    __tablename__ = "api_keys"
    __table_args__ = (Index("ix_api_keys_project_created_at", "project", "created_at"),)

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    scopes: Mapped[list[str]] = mapped_column(JSON)
    secret_hash: Mapped[str] = mapped_column(String(64))
    #: like "600/minute"; None: the server's own
    rate_limit: Mapped[str | None] = mapped_column(String(NAME_LENGTH))
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class AuditRow(Owned, Base):
    """One write: who did what to which resource, in the transaction that did it."""

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_project_created_at", "project", "created_at"),
        Index("ix_audit_created_at", "created_at"),
    )

    #: "create", "delete", "cancel", "rotate", "revoke", "embed", "append"
    action: Mapped[str] = mapped_column(String(20))
    #: "encoder", "anchor-set", "pool", "head", "translator", "job", "api-key"
    resource: Mapped[str] = mapped_column(String(20))
    #: the resource's name, or its id where it has none
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    #: the key's id; None without keys, or for the command line
    key_id: Mapped[str | None] = mapped_column(String(32))
    #: the request's id, or "job <id>", or "command line"
    origin: Mapped[str] = mapped_column(String(NAME_LENGTH))


class IdempotentRequestRow(Owned, Base):
    """A creating request that a client may repeat: which resource it made, noted in the transaction that made it."""

    __tablename__ = "idempotent_requests"
    __table_args__ = (
        UniqueConstraint("project", "key"),
        Index("ix_idempotent_requests_created_at", "created_at"),
    )

    key: Mapped[str] = mapped_column(String(255))
    #: SHA-256 of method, path and body: the same key for another request is an error
    fingerprint: Mapped[str] = mapped_column(String(64))
    #: who is doing it now; another try may take over after `claimed_until`
    claim: Mapped[str] = mapped_column(String(32))
    claimed_until: Mapped[datetime] = mapped_column(UtcDateTime)
    #: the row id of what was made; None while it is being made
    made: Mapped[str | None] = mapped_column(String(32))
