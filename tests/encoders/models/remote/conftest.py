"""Fixtures for the tests of remote encoders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.encoders.models.remote import endpoint as endpoint_module
from tests.encoders.models.remote.endpoints import FakeEndpoint


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as server:
        yield server


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch):
    monkeypatch.setattr(endpoint_module, "ENDPOINT_BACKOFF_S", 0.01)
