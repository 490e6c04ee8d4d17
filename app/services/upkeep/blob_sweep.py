"""Deletes blobs that no row names."""

from __future__ import annotations

from app.services.context import Services
from app.storage.queries import resources


def sweep_blobs(services: Services) -> int:
    """Delete old blobs that no row names, and return their number. Raises DatabaseUnavailable."""
    with services.db.transaction() as session:
        names = resources.named_blobs(session)
    return services.blobs.sweep(names)
