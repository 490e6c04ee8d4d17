"""The data pack: real sentences, their intents, and their embeddings by four encoders."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

import torch
from safetensors.torch import load
from torch import Tensor

#: the first rows are anchors, the last are queries, and the others are the demo's index
ANCHOR_COUNT = 500
QUERY_COUNT = 300

#: made the vectors of the demo's index
OLD_MODEL = "Universal Sentence Encoder (multilingual, 2019)"


@dataclass(frozen=True, eq=False)
class Pack:
    """The rows of the pack.

    sentences  (n)
    classes    names of the intents
    labels     (n,) index of each sentence's intent in `classes`
    vectors    encoder name -> (n, d) float32, all-MiniLM-L6-v2 and two small students of it
    old        (n, 512) by OLD_MODEL, which learned from none of them
    """

    sentences: list[str]
    classes: list[str]
    labels: Tensor
    vectors: dict[str, Tensor]
    old: Tensor

    anchors = slice(0, ANCHOR_COUNT)
    index = slice(ANCHOR_COUNT, -QUERY_COUNT)
    queries = slice(-QUERY_COUNT, None)

    @property
    def new(self) -> Tensor:
        """(n, 384) by all-MiniLM-L6-v2."""
        return self.vectors["minilm6-384"]


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
        old=load((folder / "old.safetensors").read_bytes())["use-512"].float(),
    )
