"""A task: several encoders of labelled items, parallel anchors to draw, and which pairs are
stitched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from app.maths.geometry.space import draw_rows
from benchmarks.common import DATA

TEXT_ENCODERS = ("minilm3-512", "minilm6-384", "static-256")
#: encoders trained on ImageNet; CIFAR ResNets saw these very labels in training
IMAGE_ENCODERS = (
    "mobilenet_v1_025",
    "mobilenet_v1_050",
    "mobilenet_v1_075",
    "mobilenet_v1_100",
    "mobilenet_v2_100_ptq",
    "squeezenet_v10",
)
TIMM_ENCODERS = ("convnext-s0", "densenet-s0", "resnet10t-s0", "resnet10t-s1", "vit-s0")


@dataclass(frozen=True, eq=False)
class Side:
    """One encoder's labelled vectors: train (n, d), test (m, d)."""

    train: Tensor
    y_train: Tensor
    test: Tensor
    y_test: Tensor


#: (size, seed) -> for each encoder, the training rows that are its anchors, in one common order
Draw = Callable[[int, int], dict[str, list[int]]]


@dataclass(frozen=True, eq=False)
class Task:
    """sizes   numbers of anchors, the main one first
    deltas  irp's pruning thresholds, the paper's own for this data among them
    paper   what the papers print for this data, with other encoders
    note    what a reader must know before comparing
    """

    title: str
    sides: dict[str, Side]
    pairs: list[tuple[str, str]]
    draw: Draw
    sizes: tuple[int, ...]
    deltas: tuple[float, ...]
    paper: dict[str, Any]
    note: str = ""

    @property
    def classes(self) -> int:
        """The number of labels."""
        return 1 + max(int(side.y_train.max()) for side in self.sides.values())


def archive(path: str) -> Any:
    return np.load(DATA / path, allow_pickle=False)


def tensor(array: Any) -> Tensor:
    return torch.from_numpy(array).float()


def labels(array: Any) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


def same_items(sides: dict[str, Side]) -> tuple[list[tuple[str, str]], Draw]:
    """Every ordered pair, and anchors drawn uniformly from training items that all encoders
    embedded.
    """
    items = len(next(iter(sides.values())).train)

    def draw(size: int, seed: int) -> dict[str, list[int]]:
        rows = draw_rows(items, size, seed=seed).tolist()
        return dict.fromkeys(sides, rows)

    return list(permutations(sides, 2)), draw


def irp_paper(delta: float, zero_shot: str, absolute: str, native: str) -> dict[str, Any]:
    """A row of Maiorca et al. 2024, Table 2."""
    return {
        "irp": zero_shot,
        "untranslated": absolute,
        "native": native,
        "source": f"Maiorca et al. 2024, Table 2 (other encoders, omega 8, delta {delta})",
    }


def text_sides(name: str) -> dict[str, Side]:
    files = {encoder: archive(f"encoders/emb/{name}.{encoder}.npz") for encoder in TEXT_ENCODERS}
    return {
        encoder: Side(
            tensor(f["train"]), labels(f["y_train"]), tensor(f["test"]), labels(f["y_test"])
        )
        for encoder, f in files.items()
    }


def trec() -> Task:
    sides = text_sides("trec")
    pairs, draw = same_items(sides)
    paper = irp_paper(0.70, ".73 ± .09", ".22 ± .06", ".87 ± .04") | {
        "relative, stitched": ".72 ± .07",
        "relative, native": ".85 ± .02",
    }
    paper["source"] += "; relative: Moschella et al. 2023, Table 5 (weighted F1)"
    note = (
        "static-256 is the weak encoder: stitched into its head, a better source beats its native "
        "accuracy, and as a source it loses most. It and minilm3-512 were distilled from "
        "minilm6-384."
    )
    return Task(
        "TREC, 6 classes", sides, pairs, draw, (1000, 300, 3000), (0.3, 0.6, 0.7, 0.8), paper, note
    )


def banking77() -> Task:
    sides = text_sides("banking77")
    pairs, draw = same_items(sides)
    paper = {"source": "neither paper has Banking77"}
    note = "two of the three encoders were distilled from the third, minilm6-384."
    return Task(
        "Banking77, 77 intents", sides, pairs, draw, (1000, 300), (0.3, 0.6, 0.8), paper, note
    )


def fmnist() -> Task:
    file = archive("encoders/emb/fmnist.npz")
    y_train, y_test = labels(file["y_train"]), labels(file["y_test"])
    sides = {
        encoder: Side(
            tensor(file[f"{encoder}/train"]), y_train, tensor(file[f"{encoder}/test"]), y_test
        )
        for encoder in TIMM_ENCODERS
    }
    pairs, draw = same_items(sides)
    paper = irp_paper(0.65, ".82 ± .03", ".10 ± .02", ".91 ± .01")
    note = "small timm encoders trained on this data; heads see 5,000 of the 60,000 training rows."
    return Task("Fashion-MNIST", sides, pairs, draw, (768, 300), (0.3, 0.6, 0.65, 0.8), paper, note)


def cifar10() -> Task:
    truth = archive("cifar10-embeddings/labels.npz")
    y_train, y_test = labels(truth["train_labels"]), labels(truth["test_labels"])
    files = {encoder: archive(f"cifar10-embeddings/{encoder}.npz") for encoder in IMAGE_ENCODERS}
    sides = {
        encoder: Side(tensor(f["train"]), y_train, tensor(f["test"]), y_test)
        for encoder, f in files.items()
    }
    pairs, draw = same_items(sides)
    paper = irp_paper(0.75, ".92 ± .05", ".11 ± .04", ".95 ± .03")
    note = (
        "six small ImageNet encoders of 256 to 1,280 dimensions, 3,000 training images; "
        "the paper's are ViTs and CLIP."
    )
    return Task("CIFAR-10", sides, pairs, draw, (768, 300), (0.6, 0.75, 0.8), paper, note)
