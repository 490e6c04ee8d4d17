"""The base class of all tables, and the columns that they share."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from sqlalchemy import DateTime, MetaData, String
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

NAME_LENGTH = 100


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
