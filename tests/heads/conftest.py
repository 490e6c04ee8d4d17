"""What tests of ONNX heads share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.heads.onnx.process import OnnxRunner


@pytest.fixture(scope="module")
def runner() -> Iterator[OnnxRunner]:
    """The process that the heads of a file's tests share."""
    made = OnnxRunner()
    yield made
    made.close()
