"""Finds resources by name, and refuses names that are taken or in use."""

from __future__ import annotations

from collections.abc import Sequence

from app.context import Services
from app.db import resources
from app.db.cache import NameKey
from app.errors import InUse


def find_by_name(
    services: Services, table: type[resources.Named], project: str, name: str, *, field: str
) -> resources.Named:
    """Return the row of that name, from memory where possible. Raises the not-found errors."""

    def look_up() -> resources.Named:
        with services.db.transaction() as session:
            return resources.by_name(session, table, project, name, field=field)

    return services.names.find_or(NameKey(project, table.__tablename__, (name,)), look_up)


def require_free(services: Services, table: type[resources.Named], project: str, name: str) -> None:
    """Refuse a name that is in use, before any work for it. Raises NameTaken."""
    with services.db.transaction() as session:
        resources.require_free(session, table, project, name)


def refuse_in_use(what: str, users: Sequence[str], advice: str = "Delete those first.") -> None:
    """Raises InUse when there are users."""
    if users:
        raise InUse(f"The {what} is used by {', '.join(users[:10])}. {advice}")
