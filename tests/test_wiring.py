"""Settings become services: one process by default, several with Redis and PostgreSQL."""

from __future__ import annotations

import pytest

from app.context import RequestContext
from app.db.session import is_sqlite
from app.encoders.incoming import reserve_answer
from app.errors import TooManyVectors
from app.settings import Settings
from app.wiring import make_services


def test_nothing_is_connected_before_it_is_needed(tmp_path):
    """An API whose PostgreSQL and Redis are away starts, and reports it in /readyz."""
    away = "postgresql://nobody@127.0.0.1:1/nothing"
    settings = Settings(data_dir=tmp_path, database_url=away, redis_url="redis://127.0.0.1:1/0")
    services = make_services(settings)
    assert not is_sqlite(services.db.url)
    assert services.cache.store is not None
    services.db.close()


@pytest.mark.parametrize(("vectors", "numbers"), [(7, 2**25), (16_384, 2**25), (70_000, 0)])
def test_an_answer_may_have_2048_numbers_for_each_vector_and_never_fewer_than_by_default(
    tmp_path, vectors, numbers
):
    services = make_services(Settings(data_dir=tmp_path, max_vectors=vectors))
    assert services.limits.numbers == max(numbers, 2_048 * vectors)
    context = RequestContext("default")
    reserve_answer(services, context, "vectors", vectors, dim=2_048)
    with pytest.raises(TooManyVectors, match="ANCHORAGE_MAX_VECTORS"):
        reserve_answer(services, context, "vectors", services.limits.numbers // 2_048 + 1, dim=2048)


@pytest.mark.parametrize("url", ["nonsense", "http://127.0.0.1"])
def test_what_is_no_redis_url_is_refused_at_once(tmp_path, url):
    with pytest.raises(ValueError, match="redis_url"):
        make_services(Settings(data_dir=tmp_path, redis_url=url))
