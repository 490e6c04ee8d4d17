"""ONNX files, as an operator puts them into a folder of the service."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "heads"
    made.mkdir()
    return made


@pytest.fixture
def export(folder: Path) -> Callable[..., str]:
    """Writes a network of six inputs; without `dynamic` its batch has one row."""

    def write(network: nn.Module, name: str = "head.onnx", *, dynamic: bool = True) -> str:
        axes: Any = {"x": {0: "n"}, "y": {0: "n"}} if dynamic else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter warns of its deprecation
            torch.onnx.export(
                network.eval(), torch.randn(2 if dynamic else 1, 6), str(folder / name),
                dynamo=False, input_names=["x"], output_names=["y"], dynamic_axes=axes,
            )  # fmt: skip
        return name

    return write
