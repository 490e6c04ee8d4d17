"""Judged queries, and requests to evaluate them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.translate.translations import PAIR


@pytest.fixture
def judged(embeddings: dict[str, np.ndarray]) -> dict[str, Any]:
    """Thirty queries near one anchor each, which is their relevant document.

    The old encoder sees noise in place of them.
    """
    draw = np.random.default_rng(8)
    noise = draw.normal(size=(30, 8))
    near = embeddings["second"][:30] + 0.01 * draw.normal(size=(30, 6))
    return {
        "queries": near.tolist(),
        "old_queries": noise.tolist(),
        "documents": embeddings["first"].tolist(),
        "native_documents": embeddings["second"].tolist(),
        "judgements": [{"query": row, "document": row} for row in range(30)],
    }


@pytest.fixture
def evaluate(stocked: TestClient, judged: dict[str, Any]) -> Callable[..., httpx2.Response]:
    """POST /evaluate of the judged queries; a value of ... leaves a field out."""

    def post(prefer: str = "wait=60", **more: Any) -> httpx2.Response:
        body = {**PAIR, "method": "graded", **judged, **more}
        body = {key: value for key, value in body.items() if value is not ...}
        return stocked.post("/evaluate", json=body, headers={"Prefer": prefer})

    return post
