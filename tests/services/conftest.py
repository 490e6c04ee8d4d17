"""The use cases on real databases, without HTTP and without workers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from app.errors import DatabaseUnavailable, NameTaken
from app.services.anchors import anchor_sets
from app.services.context import Services
from app.settings import Settings
from app.wiring import make_services
from tests.services.helpers import CONTEXT, OTHER_PROCESSES, create_encoder
from tests.storage.helpers import delete_all
from tests.waiting import until


@pytest.fixture(autouse=True)
def close_other_processes() -> Iterator[None]:
    """Close what `another_process` opened: PostgreSQL's connections are not dropped unclosed."""
    yield
    while OTHER_PROCESSES:
        OTHER_PROCESSES.pop().close()


@pytest.fixture
def on_sqlite(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Services]:
    shutil.copy(migrated_sqlite, tmp_path / "anchorage.db")
    services = make_services(Settings(data_dir=tmp_path))
    yield services
    services.close()


@pytest.fixture
def on_postgres(migrated_postgres: str, tmp_path: Path) -> Iterator[Services]:
    services = make_services(Settings(data_dir=tmp_path, database_url=migrated_postgres))
    yield services
    delete_all(services.db)
    services.close()


@pytest.fixture
def services(request: pytest.FixtureRequest) -> Services:
    """On SQLite, unless a test asks for both databases by ON_EACH_DATABASE."""
    return request.getfixturevalue(getattr(request, "param", "on_sqlite"))  # type: ignore[no-any-return]


def made(create: Callable[[], object]) -> None:
    """Create what a test begins with; a database that other tests keep busy may pause."""

    def there() -> bool:
        try:
            create()
        except DatabaseUnavailable:
            return False
        except NameTaken:  # by an attempt whose answer was late
            pass
        return True

    until(there, every_s=0.5)


@pytest.fixture
def stock() -> Callable[[Services], Services]:
    """Puts into project `p` the encoders `a` (3) and `b` (2), and the set `s` of 12 items."""

    def stock(services: Services) -> Services:
        for name, dim in (("a", 3), ("b", 2)):
            made(lambda name=name, dim=dim: create_encoder(services, name, dim))  # type: ignore[misc]
        draw = torch.Generator().manual_seed(0)
        embeddings = {
            "a": torch.randn(12, 3, generator=draw),
            "b": torch.randn(12, 2, generator=draw),
        }
        made(
            lambda: anchor_sets.create_anchor_set(
                services, CONTEXT, name="s", embeddings=embeddings
            )
        )
        return services

    return stock


@pytest.fixture
def stocked(services: Services, stock: Callable[[Services], Services]) -> Services:
    return stock(services)
