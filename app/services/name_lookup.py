"""Finds resources by name, and waits until a deleted name is free."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from app.errors import (
    InUse,
)
from app.services.context import Services
from app.storage import tables
from app.storage.name_cache import NameKey
from app.storage.queries import resources


def find_by_name(
    services: Services, table: type[resources.Named], project: str, name: str, *, field: str
) -> resources.Named:
    """Return the row of that name, from memory where possible. Raises the not-found errors."""

    def look_up() -> resources.Named:
        with services.db.transaction() as session:
            return resources.by_name(session, table, project, name, field=field)

    return services.names.find_or(NameKey(project, table.__tablename__, (name,)), look_up)


def require_free(services: Services, table: type[resources.Named], project: str, name: str) -> None:
    """Wait until no process remembers a deleted row of that name.

    The deletion may be so recent that its client has no answer yet. Raises NameTaken, and
    Overloaded when too many requests wait.
    """
    # A minute covers any difference between the clocks of two machines.
    since = tables.now() - timedelta(seconds=60)
    with services.db.transaction() as session:
        resources.require_free(session, table, project, name)
        deleted_at = resources.deleted_at(session, table, project, name, since=since)
    wait_s = 0.0 if deleted_at is None else services.names.still_settling_s(deleted_at)
    if wait_s:
        with services.settling():
            time.sleep(wait_s)


def refuse_in_use(what: str, users: Sequence[str], advice: str = "Delete those first.") -> None:
    """Raises InUse when there are users."""
    if users:
        raise InUse(f"{what} is used by {', '.join(users[:10])}. {advice}")
