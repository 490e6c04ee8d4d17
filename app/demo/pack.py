"""The data pack: real sentences, their intents, and their embeddings by three encoders."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

import torch
from safetensors.torch import load
from torch import Tensor

#: the first rows are anchors, the next train heads, and all others are for tests
ANCHOR_COUNT = 500
TRAINING_COUNT = 1_000


@dataclass(frozen=True, eq=False)
class Pack:
    """The rows of the pack.

    sentences  (n)
    classes    names of the intents
    labels     (n,) index of each sentence's intent in `classes`
    vectors    encoder name -> (n, d) float32
    """

    sentences: list[str]
    classes: list[str]
    labels: Tensor
    vectors: dict[str, Tensor]

    anchors = slice(0, ANCHOR_COUNT)
    rest = slice(ANCHOR_COUNT, None)
    train = slice(ANCHOR_COUNT, ANCHOR_COUNT + TRAINING_COUNT)
    test = slice(ANCHOR_COUNT + TRAINING_COUNT, None)


def load_pack() -> Pack:
    """Read the pack from the installed package."""
    folder = files("app.demo") / "data"
    text = json.loads((folder / "sentences.json").read_text())
    classes = sorted(set(text["intents"]))
    vectors = load((folder / "embeddings.safetensors").read_bytes())
    return Pack(
        sentences=text["sentences"],
        classes=classes,
        labels=torch.tensor([classes.index(intent) for intent in text["intents"]]),
        vectors={name: tensor.float() for name, tensor in sorted(vectors.items())},
    )
