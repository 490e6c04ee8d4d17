"""Cora: the encoder of one graph network stitched to the classifier of another, trained from
another seed.

Five two-layer graph convolutional networks (64 dimensions, planetoid split: 140 training labels,
1,000 test nodes), 20 ordered pairs; anchors are 300 nodes outside the test set, drawn anew for each
seed, the networks stay. 'relative' is a linear head trained afterwards on a network's relative
vectors. Native, and what reads translated vectors, is a network's own classifier, trained with it.
Moschella et al. 2023, Table 2, has weighted F1 of .90, not stitched, on another split.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, embedding_bag

from app.maths.geometry.sampling import draw_uniformly
from app.maths.translators.translator import apply
from research.definitions import relative
from research.stitching.head import Head, train_head
from research.stitching.measure import (
    NATIVE,
    RELATIVE,
    RELATIVE_NATIVE,
    RELATIVE_STRENGTH,
    SEEDS,
    UNTRANSLATED,
    VARIANTS,
    Accuracies,
    Fits,
)
from research.stitching.task import archive, labels

NETWORKS = 5
HIDDEN, DIM, CLASSES = 64, 64, 7
STEPS, RATE, DECAY, DROPOUT = 150, 0.01, 5e-4, 0.5
ANCHORS = 300
DELTAS = (0.3, 0.6, 0.8)


@dataclass(frozen=True, eq=False)
class Graph:
    """words, shares, starts  sparse features for torch's embedding_bag; each node's rows sum to one
    sources, targets, weights  edges both ways and self-loops, weighted by 1 / sqrt(degree degree)
    """

    words: Tensor
    shares: Tensor
    starts: Tensor
    vocabulary: int
    sources: Tensor
    targets: Tensor
    weights: Tensor
    y: Tensor
    train: Tensor
    test: Tensor

    def propagate(self, vectors: Tensor) -> Tensor:
        """The normalised adjacency matrix times vectors (n, d)."""
        return torch.zeros_like(vectors).index_add(
            0, self.targets, vectors[self.sources] * self.weights[:, None]
        )


class Network(nn.Module):
    """Two graph convolutions to DIM dimensions, then a linear classifier."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.first = nn.Parameter(nn.init.xavier_uniform_(torch.empty(vocabulary, HIDDEN)))
        self.second = nn.Linear(HIDDEN, DIM)
        self.classifier = nn.Linear(DIM, CLASSES)

    def encode(self, graph: Graph) -> Tensor:
        """The nodes' vectors (n, DIM)."""
        shares = dropout(graph.shares, DROPOUT, training=self.training)
        first = embedding_bag(
            graph.words, self.first, graph.starts, mode="sum", per_sample_weights=shares
        )
        hidden = dropout(torch.relu(graph.propagate(first)), DROPOUT, training=self.training)
        return graph.propagate(self.second(hidden))

    def forward(self, graph: Graph) -> Tensor:
        """The nodes' logits (n, CLASSES)."""
        coordinates = dropout(self.encode(graph), DROPOUT, training=self.training)
        logits: Tensor = self.classifier(coordinates)
        return logits


def read() -> Graph:
    file = archive("planetoid/cora_plain.npz")
    nodes, vocabulary = (int(n) for n in file["x_shape"])
    owners = torch.from_numpy(np.repeat(np.arange(nodes), np.diff(file["x_indptr"])))
    values = torch.from_numpy(file["x_data"])
    sums = torch.zeros(nodes).index_add(0, owners, values)
    edges = torch.from_numpy(file["edges"]).long().T
    sources, targets = torch.cat([edges, edges.flip(0), torch.arange(nodes).expand(2, -1)], dim=1)
    degree = torch.bincount(targets, minlength=nodes).float()
    return Graph(
        words=torch.from_numpy(file["x_indices"]).long(),
        shares=values / sums[owners],
        starts=torch.from_numpy(file["x_indptr"][:-1]).long(),
        vocabulary=vocabulary,
        sources=sources,
        targets=targets,
        weights=(degree[sources] * degree[targets]).rsqrt(),
        y=labels(file["y"]),
        train=torch.from_numpy(file["train_index"]),
        test=torch.from_numpy(file["test_index"]),
    )


def trained(graph: Graph, seed: int) -> Network:
    """A network trained from this seed, in evaluation mode."""
    torch.manual_seed(seed)
    network = Network(graph.vocabulary)
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE, weight_decay=DECAY)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = cross_entropy(network(graph)[graph.train], graph.y[graph.train])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return network.eval()


def accuracy(graph: Graph, head: Head, vectors: Tensor) -> float:
    """Accuracy of a head that reads the test nodes' vectors."""
    return head.accuracy(vectors[graph.test], graph.y[graph.test])


def stitch(
    graph: Graph, heads: list[Head], vectors: list[Tensor], anchors: list[int], seed: int
) -> Accuracies:
    """Every ordered pair: vectors of one network, as they are or translated, in the classifier of
    another.
    """
    fits = Fits({str(place): space[anchors] for place, space in enumerate(vectors)})
    variants: dict[str, Any] = {
        f"irp, delta {delta}": ("irp", {"delta": delta, "seed": seed}) for delta in DELTAS
    } | VARIANTS
    cosines = [
        relative(space, fits.spaces[str(place)]).float() for place, space in enumerate(vectors)
    ]
    readers = [
        train_head(
            own[graph.train], graph.y[graph.train], classes=CLASSES, strength=RELATIVE_STRENGTH
        )
        for own in cosines
    ]
    found: Accuracies = {}
    for i, j in permutations(range(len(heads)), 2):
        row = {
            NATIVE: accuracy(graph, heads[j], vectors[j]),
            UNTRANSLATED: accuracy(graph, heads[j], vectors[i]),
        }
        for name, (method, options) in variants.items():
            translator = fits.translator(method, options, str(i), str(j))
            row[name] = accuracy(graph, heads[j], apply(translator, vectors[i]).vectors)
        row[RELATIVE] = accuracy(graph, readers[j], cosines[i])
        row[RELATIVE_NATIVE] = accuracy(graph, readers[j], cosines[j])
        found[str(i), str(j)] = row
    return found


def measure_all() -> list[Accuracies]:
    """For each seed (of the draw of anchors, of irp), the accuracies of the 20 ordered pairs of
    five networks.
    """
    graph = read()
    networks = [trained(graph, seed) for seed in range(NETWORKS)]
    heads = [
        Head(network.classifier.weight.detach(), network.classifier.bias.detach())
        for network in networks
    ]
    with torch.no_grad():
        vectors = [network.encode(graph) for network in networks]
    open_ = sorted(set(range(len(graph.y))) - set(graph.test.tolist()))
    found = []
    for seed in SEEDS:
        anchors = [open_[row] for row in draw_uniformly(len(open_), size=ANCHORS, seed=seed)]
        found.append(stitch(graph, heads, vectors, anchors, seed))
    return found
