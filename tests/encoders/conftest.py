"""Fixtures for the tests of encoders behind endpoints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.encoders.models.remote import endpoint as endpoint_module
from tests.encoders.models.remote.endpoints import FakeEndpoint


@pytest.fixture
def endpoint(monkeypatch) -> Iterator[FakeEndpoint]:
    """A correct endpoint. A second request after a fault comes soon."""
    monkeypatch.setattr(endpoint_module, "ENDPOINT_BACKOFF_S", 0.01)
    with FakeEndpoint() as server:
        yield server
