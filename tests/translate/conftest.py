"""Requests for translations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.translate.translations import PAIR


@pytest.fixture
def ask(stocked: TestClient, embeddings: dict[str, np.ndarray]) -> Callable[..., httpx2.Response]:
    """Posts PAIR and three vectors of `first`; a value of ... omits a field."""

    def post(path: str = "/translate", **more: Any) -> httpx2.Response:
        body = {**PAIR, "vectors": embeddings["first"][:3].tolist(), **more}
        return stocked.post(
            path, json={key: value for key, value in body.items() if value is not ...}
        )

    return post
