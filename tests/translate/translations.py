"""Requests for translations from `first` to `second`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import numpy as np
from starlette.testclient import TestClient

PAIR = {"source": "first", "target": "second", "anchor_set": "items"}


def asker(client: TestClient, vectors: np.ndarray) -> Callable[..., httpx2.Response]:
    """Returns a function that posts PAIR and three of the vectors; a value of ... omits a field."""

    def post(path: str = "/translate", **more: Any) -> httpx2.Response:
        body = {**PAIR, "vectors": vectors[:3].tolist(), **more}
        return client.post(
            path, json={key: value for key, value in body.items() if value is not ...}
        )

    return post
