"""Fixtures for the tests of timm encoders."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A models' folder with small timm models."""
    from tests.encoders.models.timm_models import save_models  # needs timm

    root = tmp_path_factory.mktemp("models")
    save_models(root)
    return root
