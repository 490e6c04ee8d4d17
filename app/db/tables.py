"""The tables. Vectors are stored in blobs, which rows name by content hash."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    ForeignKey,
    Index,
    LargeBinary,
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

#: results of a check of an encoder that is not as it was
CHANGED_RESULTS = ("moved", "replaced")


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC. SQLite drops the time zone, so it is added when a value is read."""

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


def today() -> int:
    """Return the number of whole days since 1970, in UTC."""
    return int(now().timestamp()) // 86_400


class Base(DeclarativeBase):
    """The base class of all tables."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Leased:
    """Columns of rows that one process at a time works on: see `queries.leases`."""

    #: the token of the process that works on the row; None: none does
    lease: Mapped[str | None] = mapped_column(String(32))
    #: when the lease ends, by the database's clock, unless it is renewed
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Owned:
    """Columns of every table: id, project and creation time."""

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
    #: options of the kind, as the client sent them
    options: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    #: everything that the vectors depend on, when the encoder was registered; None if external
    identity: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    #: by the id of another encoder, the newest comparison with it; None without one
    comparisons: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    #: the last day, since 1970, on which a worker took its daily check
    watched_day: Mapped[int | None]
    #: its last check, as `encoder_check.EncoderCheck`; None without one
    last_check: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))

    @property
    def has_changed(self) -> bool:
        """Whether the last check found other vectors than those of its anchors."""
        return (self.last_check or {}).get("result") in CHANGED_RESULTS


class AnchorSetRow(Owned, Base):
    __tablename__ = "anchor_sets"
    __table_args__ = (UniqueConstraint("project", "name"),)

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    size: Mapped[int]
    #: the bootstrap job that made the anchors, and its settings; None otherwise
    provenance: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    #: content hash of the items, if they are stored for encoders that are added later
    inputs: Mapped[str | None] = mapped_column(String(64))
    #: content hash of the ids of the store's rows that the items are; None without a store
    store_rows: Mapped[str | None] = mapped_column(String(64))
    spaces: Mapped[list[SpaceRow]] = relationship(
        back_populates="anchor_set",
        cascade="all, delete-orphan",
        passive_deletes=True,
        order_by="SpaceRow.created_at",
        lazy="selectin",
    )


class SpaceRow(Owned, Base):
    """One encoder's embeddings of an anchor set."""

    __tablename__ = "spaces"
    __table_args__ = (UniqueConstraint("anchor_set_id", "encoder_id"),)

    anchor_set_id: Mapped[str] = mapped_column(ForeignKey("anchor_sets.id", ondelete="CASCADE"))
    encoder_id: Mapped[str] = mapped_column(ForeignKey("encoders.id"), index=True)
    #: content hash of the raw anchors (k, d), float32
    blob: Mapped[str] = mapped_column(String(64))
    #: content hash of vectors (n, d) of a store by this encoder, float32, which have no partners
    sample: Mapped[str | None] = mapped_column(String(64))
    #: number of its vectors; None without a sample
    sample_size: Mapped[int | None]
    #: number of vectors in that store, if known
    store_size: Mapped[int | None] = mapped_column(BigInteger)
    health: Mapped[dict[str, Any]] = mapped_column(JSON)
    #: whether its encoder, as registered, is known to make its anchors of the set's inputs: the
    #: service embedded them, or a check found them unchanged
    is_baseline: Mapped[bool | None]
    anchor_set: Mapped[AnchorSetRow] = relationship(back_populates="spaces", lazy="joined")
    encoder: Mapped[EncoderRow] = relationship(lazy="joined")

    @property
    def store_sample(self) -> SpaceRow | None:
        """Return the row if it has a sample."""
        return None if self.sample is None else self


class PoolRow(Owned, Base):
    """Items of one encoder for a bootstrap, in any order. Clients send them in pieces."""

    __tablename__ = "pools"
    __table_args__ = (UniqueConstraint("project", "name"),)

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    encoder_id: Mapped[str] = mapped_column(ForeignKey("encoders.id"), index=True)
    #: number of items of all pieces; it only grows, so equal numbers mean equal pieces
    items: Mapped[int]
    #: [{"blob": content hash of (rows, d), float32, "rows": number}, ...]; loaded on demand
    pieces: Mapped[list[dict[str, Any]]] = mapped_column(JSON, deferred=True)
    encoder: Mapped[EncoderRow] = relationship(lazy="joined")

    @property
    def nbytes(self) -> int:
        """Return the size of its vectors as float32."""
        return 4 * self.items * self.encoder.dim


class TranslatorRow(Owned, Base):
    """How a translator was fitted. Its matrix is recomputed when needed."""

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
    #: content hash of the anchors' weights (k,), float32, that it was fitted with; None: all equal
    weights: Mapped[str | None] = mapped_column(String(64))
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    #: its last use, at most a day too early; retention counts from here
    used_at: Mapped[datetime] = mapped_column(
        UtcDateTime, default=now, server_default=func.now(), index=True
    )
    source: Mapped[SpaceRow] = relationship(foreign_keys=[source_id], lazy="joined")
    target: Mapped[SpaceRow] = relationship(foreign_keys=[target_id], lazy="joined")


class HeadRow(Owned, Base):
    """A classifier or decoder of one encoder's vectors, or of an anchor set's relative vectors."""

    __tablename__ = "heads"
    __table_args__ = (UniqueConstraint("project", "name"),)

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    kind: Mapped[str] = mapped_column(String(40))
    dim: Mapped[int]
    #: class names; empty for a head that returns numbers
    classes: Mapped[list[str | int]] = mapped_column(JSON)
    #: how many numbers it returns
    outputs: Mapped[int]
    #: the architecture of hidden layers, the preprocessing of the vectors, and the meaning of its
    #: numbers
    settings: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    blob: Mapped[str] = mapped_column(String(64))
    encoder_id: Mapped[str | None] = mapped_column(ForeignKey("encoders.id"), index=True)
    anchor_set_id: Mapped[str | None] = mapped_column(ForeignKey("anchor_sets.id"), index=True)
    encoder: Mapped[EncoderRow | None] = relationship(lazy="joined")
    anchor_set: Mapped[AnchorSetRow | None] = relationship(lazy="joined")


class AliasRow(Owned, Base):
    """A plain name for a model, which can be pointed to another one."""

    __tablename__ = "aliases"
    __table_args__ = (UniqueConstraint("project", "name"),)

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    #: the id of the model: `encoder` or `encoder->target@anchor-set`; None: it follows a store
    model: Mapped[str | None] = mapped_column(String(400))
    #: what the id names, so that none of it can be deleted. Names never change
    encoder_id: Mapped[str | None] = mapped_column(ForeignKey("encoders.id"), index=True)
    target_id: Mapped[str | None] = mapped_column(ForeignKey("encoders.id"), index=True)
    anchor_set_id: Mapped[str | None] = mapped_column(ForeignKey("anchor_sets.id"), index=True)
    store_id: Mapped[str | None] = mapped_column(ForeignKey("stores.id"), index=True)
    store: Mapped[StoreRow | None] = relationship(lazy="joined")


#: conditions of partial indexes: workers query unfinished jobs all the time; most are finished
_UNFINISHED: dict[str, Any] = dict.fromkeys(
    ("sqlite_where", "postgresql_where"), text("finished_at IS NULL")
)
_FINISHED: dict[str, Any] = dict.fromkeys(
    ("sqlite_where", "postgresql_where"), text("finished_at IS NOT NULL")
)


class JobRow(Leased, Owned, Base):
    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_project_created_at", "project", "created_at"),
        Index("ix_jobs_project_started_at", "project", "started_at"),
        Index("ix_jobs_due_at", "due_at", **_UNFINISHED),
        Index("ix_jobs_lease", "lease", **_UNFINISHED),
        Index("ix_jobs_finished_at", "finished_at", **_FINISHED),
    )

    kind: Mapped[str] = mapped_column(String(40))
    state: Mapped[str] = mapped_column(String(20))
    #: the request, with the hashes of blobs in place of vectors
    arguments: Mapped[dict[str, Any]] = mapped_column(JSON)
    #: incremented with every change that a client can see
    version: Mapped[int] = mapped_column(default=0)
    #: claims since a checkpoint last went beyond `furthest`, without those that were handed back
    attempts: Mapped[int] = mapped_column(default=0)
    #: content hash of its last checkpoint; None without one and for a finished job
    checkpoint: Mapped[str | None] = mapped_column(String(64))
    #: the last step that any checkpoint has recorded
    furthest: Mapped[int] = mapped_column(default=0)
    #: when a queued job may be claimed, by the database's clock; a project's longest due
    #: comes first
    due_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    #: {"done": steps, "total": steps, ...}
    progress: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    #: the problem document of a failed job: {"code": ..., "detail": ..., ...}
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: null while the job waits or runs
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class StoreRow(Owned, Base):
    """Somebody's vector store: one collection, at an address that the operator allows."""

    __tablename__ = "stores"
    __table_args__ = (UniqueConstraint("project", "name"),)

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    kind: Mapped[str] = mapped_column(String(40))
    #: the name of an address in the operator's settings
    address: Mapped[str] = mapped_column(String(NAME_LENGTH))
    collection: Mapped[str] = mapped_column(String(200))
    #: vector_field, id_field, text_field, metric, and the options of the kind
    options: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    #: whose vectors it holds
    encoder_id: Mapped[str] = mapped_column(ForeignKey("encoders.id"), index=True)
    encoder: Mapped[EncoderRow] = relationship(lazy="joined")

    @property
    def by_product(self) -> bool:
        """Whether searches compare by inner product, in which lengths count."""
        return self.options.get("metric") == "dot"

    def map_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a translation of its vectors, which keeps lengths that count."""
        return {**({"keep_norms": True} if self.by_product else {}), **options}


class NativeVectorRow(Base):
    """A vector that an encoder made of a text. The text is not stored."""

    __tablename__ = "native_vectors"
    __table_args__ = (Index("ix_native_vectors_store_id_row_id", "store_id", "row_id"),)

    encoder_id: Mapped[str] = mapped_column(
        ForeignKey("encoders.id", ondelete="CASCADE"), primary_key=True
    )
    #: SHA-256 of the text
    digest: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    #: (d,) float32, little-endian
    vector: Mapped[bytes] = mapped_column(LargeBinary)
    made_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now, index=True)
    #: the row of a store that has the text, and the SHA-256 of its id; None: a request had it
    store_id: Mapped[str | None] = mapped_column(ForeignKey("stores.id", ondelete="CASCADE"))
    row_id: Mapped[str | None] = mapped_column(String(64))


#: a store has at most one migration whose traces are still in it
_ACTIVE: dict[str, Any] = dict.fromkeys(
    ("sqlite_where", "postgresql_where"), text("ended_at IS NULL")
)


class MigrationRow(Leased, Owned, Base):
    """A move of a store to another encoder, next to the old vectors until it is finished."""

    __tablename__ = "migrations"
    __table_args__ = (
        Index("uq_migrations_store_id", "store_id", unique=True, **_ACTIVE),
        Index("ix_migrations_project_created_at", "project", "created_at"),
    )

    store_id: Mapped[str] = mapped_column(ForeignKey("stores.id", ondelete="CASCADE"), index=True)
    target_id: Mapped[str] = mapped_column(ForeignKey("encoders.id"), index=True)
    #: a run that embeds makes one where the plan names none
    anchor_set_id: Mapped[str | None] = mapped_column(ForeignKey("anchor_sets.id"), index=True)
    state: Mapped[str] = mapped_column(String(20))
    #: what `run` obeys
    plan: Mapped[dict[str, Any]] = mapped_column(JSON)
    #: content hash of the map's tensors in both directions, with the anchors of both encoders;
    #: None until there are anchors
    maps: Mapped[str | None] = mapped_column(String(64))
    #: the position of the sweep: {"cursor": ..., "rows": number}; committed after the write
    position: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    #: what verify, cutover and rollback found
    found: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    #: the problem document that stopped it; None while it goes well
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    #: its last job
    job_id: Mapped[str | None] = mapped_column(String(32))
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now, onupdate=now)
    #: null until nothing of it is left in the store but its result
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    store: Mapped[StoreRow] = relationship(lazy="joined")
    target: Mapped[EncoderRow] = relationship(lazy="joined")
    anchor_set: Mapped[AnchorSetRow | None] = relationship(lazy="joined")


class ApiKeyRow(Owned, Base):
    """An API key. Stores only the SHA-256 of the secret, which has 256 random bits."""

    __tablename__ = "api_keys"
    __table_args__ = (Index("ix_api_keys_project_created_at", "project", "created_at"),)

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    scopes: Mapped[list[str]] = mapped_column(JSON)
    secret_hash: Mapped[str] = mapped_column(String(64))
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class AuditRow(Owned, Base):
    """One write: who changed which resource, recorded in the same transaction."""

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_project_created_at", "project", "created_at"),
        Index("ix_audit_created_at", "created_at"),
    )

    #: "create", "delete", "cancel", "revoke", "embed", "append", "sample", "point"
    action: Mapped[str] = mapped_column(String(20))
    #: "encoder", "anchor-set", "pool", "head", "translator", "job", "api-key", "store",
    #: "migration", "alias"
    resource: Mapped[str] = mapped_column(String(20))
    #: the resource's name, or its id where it has none
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    #: the key's id; None without keys, or for the command line
    key_id: Mapped[str | None] = mapped_column(String(32))
    #: the request's id, or "job <id>", or "command line"
    origin: Mapped[str] = mapped_column(String(NAME_LENGTH))
