"""Migrations of tables in a real PostgreSQL with pgvector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from app.context import Services
from app.db.cache import Cache
from tests.moves.moving import Moving, begin_moving
from tests.pgvector_server import PgvectorServer


@pytest.fixture(scope="session")
def warm_cache() -> Cache:
    """What the tests fit again and again, by its content, as processes share it through Redis."""
    return Cache(256 * 1024 * 1024)


@pytest.fixture
def on_sqlite(on_sqlite: Services, warm_cache: Cache) -> Services:
    return replace(on_sqlite, cache=warm_cache)


@pytest.fixture
def begin(on_sqlite: Services, pgvector_server: PgvectorServer) -> Iterator[Callable[..., Moving]]:
    """Plans a migration of a new table."""
    yield lambda *arguments, **plan: begin_moving(on_sqlite, pgvector_server, *arguments, **plan)
    on_sqlite.stores.close()


@pytest.fixture
def moving(begin: Callable[..., Moving]) -> Moving:
    """A planned migration of 1,200 rows."""
    return begin()


@pytest.fixture
def filled(moving: Moving) -> Moving:
    """One whose rows all have new vectors."""
    moving.do("run")
    assert moving.state == "filled", moving.now.error
    return moving


@pytest.fixture
def verified(filled: Moving) -> Moving:
    """One that may be cut over."""
    filled.do("verify")
    return filled
