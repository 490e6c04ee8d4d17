"""What all rows of one run share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu.device import Device


@dataclass(frozen=True)
class Run:
    """The options of the command.

    folder    for models and data that are made on the way
    rivals    name -> base URL of an OpenAI-compatible endpoint that serves MiniLM as `minilm`
    infinity  the command infinity_emb of another environment
    real      learn from real sentences instead of made vectors, up to as many as there are
    """

    device: Device
    folder: Path
    rivals: Mapping[str, str] = field(default_factory=dict)
    infinity: str | None = None
    real: bool = False
