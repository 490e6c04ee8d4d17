"""Fixtures of the tests of pgvector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from tests.pgvector_server import PgvectorServer
from tests.stores.pgvector.tables import Table


@pytest.fixture
def new_table(pgvector_server: PgvectorServer) -> Iterator[Callable[..., Table]]:
    tables: list[Table] = []

    def make(name: str = "docs") -> Table:
        tables.append(Table(pgvector_server, name))
        return tables[-1]

    yield make
    for each in tables:
        each.drop()


@pytest.fixture
def table(new_table: Callable[..., Table]) -> Table:
    """A table of 30 rows with an HNSW index."""
    return new_table().fill()


@pytest.fixture
def role(pgvector_server: PgvectorServer, new_table: Callable[..., Table]) -> Iterator[str]:
    """Another role, which may log in."""
    name = f"role_{uuid4().hex[:12]}"
    pgvector_server.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    pgvector_server.execute(
        f"REASSIGN OWNED BY {name} TO CURRENT_USER",
        f"DROP OWNED BY {name} CASCADE",
        f"DROP ROLE {name}",
    )
