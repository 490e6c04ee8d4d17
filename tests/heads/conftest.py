"""Fixtures for the tests of ONNX heads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.heads.onnx.process import OnnxRunner


@pytest.fixture(scope="module")
def runner() -> Iterator[OnnxRunner]:
    """A runner that all tests of a file share."""
    made = OnnxRunner()
    yield made
    made.close()
