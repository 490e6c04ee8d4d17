"""Graph networks drawn from a grid of settings, as they learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, embedding_bag

from research.stitching.cora import CLASSES, DECAY, Graph

GRID: dict[str, tuple[Any, ...]] = {
    "seed": (0, 1, 2, 3, 4),
    "epochs": (10, 30, 50),
    "width": (32, 64),
    "depth": (1, 2, 3),
    "dropout": (0.1, 0.5),
    "activation": ("relu", "tanh"),
    "convolution": ("gcn", "gin"),
    "optimiser": ("adam", "sgd"),
    "rate": (0.01, 0.02),
}

#: epochs after which a model is measured
LOOKS = (0, 1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50)


@dataclass(frozen=True)
class Setting:
    """The settings of a model; `epochs` are whole passes over the graph."""

    seed: int
    epochs: int
    width: int
    depth: int
    dropout: float
    activation: str
    convolution: str
    optimiser: str
    rate: float


#: the paper's reference
REFERENCE = Setting(1, 500, 32, 2, 0.5, "relu", "gcn", "adam", 0.02)


def settings(count: int) -> list[Setting]:
    """Different settings from the whole grid: the same draw every time."""
    sizes = [len(values) for values in GRID.values()]
    draw = torch.randperm(int(np.prod(sizes)), generator=torch.Generator().manual_seed(0))[:count]
    places = zip(*np.unravel_index(draw.numpy(), sizes), strict=True)
    return [
        Setting(**{name: GRID[name][place] for name, place in zip(GRID, each, strict=True)})
        for each in places
    ]


class Network(nn.Module):
    """Convolutions to `width` dimensions, then a linear classifier.

    gcn takes the mean of neighbours; gin takes their sum, and has one layer more.
    """

    def __init__(self, vocabulary: int, setting: Setting) -> None:
        super().__init__()
        width, gin = setting.width, setting.convolution == "gin"
        self.setting = setting
        self.act = torch.relu if setting.activation == "relu" else torch.tanh
        self.first = nn.Parameter(nn.init.xavier_uniform_(torch.empty(vocabulary, width)))
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(setting.depth - 1))
        self.after = nn.ModuleList(
            nn.Linear(width, width) for _ in range(setting.depth if gin else 0)
        )
        self.classifier = nn.Linear(width, CLASSES)

    def encode(self, graph: Graph) -> Tensor:
        """The nodes' vectors (n, width)."""
        shares = self._drop(graph.shares)
        vectors = embedding_bag(
            graph.words, self.first, graph.starts, mode="sum", per_sample_weights=shares
        )
        for layer in range(self.setting.depth):
            if layer:
                vectors = self.inner[layer - 1](self._drop(self.act(vectors)))
            vectors = graph.propagate(vectors)
            if self.after:
                vectors = self.after[layer](self.act(vectors))
        return vectors

    def forward(self, graph: Graph) -> Tensor:
        """The nodes' logits (n, CLASSES)."""
        logits: Tensor = self.classifier(self._drop(self.encode(graph)))
        return logits

    def _drop(self, vectors: Tensor) -> Tensor:
        return dropout(vectors, self.setting.dropout, training=self.training)


def trained(graph: Graph, setting: Setting) -> Iterator[tuple[int, Network]]:
    """Train a network. Yields it at each of LOOKS and at the end of its epochs, in
    evaluation mode.
    """
    torch.manual_seed(setting.seed)
    network = Network(graph.vocabulary, setting)
    kind = torch.optim.Adam if setting.optimiser == "adam" else torch.optim.SGD
    optimiser = kind(network.parameters(), lr=setting.rate, weight_decay=DECAY)
    for epoch in range(setting.epochs + 1):
        if epoch in LOOKS or epoch == setting.epochs:
            yield epoch, network.eval()
        if epoch == setting.epochs:
            return  # as it was yielded last, and in evaluation mode
        network.train()
        optimiser.zero_grad()
        loss = cross_entropy(network(graph)[graph.train], graph.y[graph.train])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
