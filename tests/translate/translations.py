"""Requests for translations from `first` to `second`, and every method with its default options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import numpy as np
from starlette.testclient import TestClient

SHAPE = {"renormalise": True, "keep_norms": False}
METHODS = {
    "irp": {"delta": None, "omega": 8, "seed": 0, **SHAPE},
    "irp-ridge": {"ridge": 1.0, **SHAPE},
    "graded": {"encode_power": 1.0, "decode_power": 0.25, "ridge": None, **SHAPE},
    "procrustes": SHAPE,
    "ridge": {"ridge": None, **SHAPE},
    "kernel": {"ridge": None, "decode_power": 0.25, **SHAPE},
}
PAIR = {"source": "first", "target": "second", "anchor_set": "items"}


def asker(client: TestClient, vectors: np.ndarray) -> Callable[..., httpx2.Response]:
    """Returns a function that posts PAIR and three of the vectors; a value of ... omits a field."""

    def post(path: str = "/translate", **more: Any) -> httpx2.Response:
        body = {**PAIR, "vectors": vectors[:3].tolist(), **more}
        return client.post(
            path, json={key: value for key, value in body.items() if value is not ...}
        )

    return post
