"""The reference on Cora, and how good and how similar to it a model is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.geometry.sampling import draw_uniformly
from app.maths.geometry.space import fit_space
from app.maths.quality import metrics
from research.definitions import relative
from research.proxy.networks import REFERENCE, Network, trained
from research.stitching.cora import Graph, read
from research.stitching.task import archive

ANCHORS = 300


@dataclass(frozen=True)
class Look:
    """A model at one moment of its training."""

    epoch: int
    validation: float
    test: float
    similarity: float
    cka: float

    def named(self, name: str) -> float:
        """One of its numbers."""
        value: float = getattr(self, name)
        return value


@dataclass(frozen=True, eq=False)
class Yardstick:
    """The reference's relative vectors, to compare models with."""

    graphs: Mapping[str, Graph]
    validation: Tensor
    anchors: list[int]
    vectors: Tensor

    def look(self, epoch: int, network: Network) -> Look:
        """How good a model is, and how similar to the reference."""
        graph = self.graphs[network.setting.convolution]
        with torch.no_grad():
            vectors = network.encode(graph)
            right = (network.classifier(vectors).argmax(dim=1) == graph.y).float()
        validation, test = float(right[self.validation].mean()), float(right[graph.test].mean())
        return Look(epoch, validation, test, *compared(self.vectors, vectors, self.anchors))


def compared(reference: Tensor, vectors: Tensor, anchors: list[int]) -> tuple[float, float]:
    """Similarity and CKA of two models' vectors of the same nodes."""
    try:
        centred = metrics.cosine(
            *(relative(each, fit_space(each[anchors])) for each in (reference, vectors))
        )
    except DegenerateAnchors:
        return 0.0, 0.0
    return centred, metrics.cka(reference, vectors)


def yardstick() -> tuple[Yardstick, Look]:
    """Cora, with the reference trained on it, and how good the reference is."""
    graph = read()
    graphs = {"gcn": graph, "gin": replace(graph, weights=torch.ones_like(graph.weights))}
    *_, (epoch, network) = trained(graph, REFERENCE)
    with torch.no_grad():
        vectors = network.encode(graph)
    validation = torch.from_numpy(archive("planetoid/cora_plain.npz")["val_index"])
    stick = Yardstick(
        graphs, validation, draw_uniformly(len(graph.y), size=ANCHORS, seed=0), vectors
    )
    return stick, stick.look(epoch, network)
