"""Fixtures for the tests of timm encoders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A models' folder with small timm models."""
    from tests.encoders.models.timm_models import save_models  # needs timm

    root = tmp_path_factory.mktemp("models")
    save_models(root)
    return root


@pytest.fixture
def mine(folder, tmp_path):
    """Writes the model `mine` into the models' folder; its files default to a tiny ViT's."""

    def write(config=None, weights=None, *, source="vit", name="model.safetensors"):
        (tmp_path / "mine").mkdir()
        config = (folder / source / "config.json").read_text() if config is None else config
        (tmp_path / "mine" / "config.json").write_text(
            config if isinstance(config, str) else json.dumps(config)
        )
        weights = (
            (folder / source / "model.safetensors").read_bytes() if weights is None else weights
        )
        (tmp_path / "mine" / name).write_bytes(weights)
        return tmp_path

    return write
