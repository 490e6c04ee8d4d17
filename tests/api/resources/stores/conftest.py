"""A service with a real store: 200 documents by the encoder `old`, and 120 anchors of both."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings, StoreEntry
from app.stores.base import StoreLocation
from tests.maths.anchors.test_space_match import encode, items
from tests.stores.cases.base import Rows, StoreCase
from tests.stores.cases.pgvector import PgvectorCase
from tests.stores.cases.qdrant import LocalQdrantCase

#: the encoders' numbers in `encode`; `new` has fewer dimensions
ENCODERS = {"old": 0, "same-dim": 1, "new": 2}


def embed(rows: torch.Tensor, encoder: str) -> np.ndarray:
    """Unit vectors, because a store of cosines may keep no lengths."""
    vectors = encode(rows, ENCODERS[encoder])
    if encoder == "new":
        vectors = vectors[:, :24]
    return torch.nn.functional.normalize(vectors, dim=1).float().numpy()


DOCUMENTS, QUERIES = items(200, 5), items(6, 6)


@dataclass
class Shop:
    """The service, the store's location, and how the store's clients reach it."""

    client: TestClient
    location: StoreLocation
    case: StoreCase

    def definition(self, **changes: object) -> dict[str, object]:
        return {
            "name": "docs",
            "kind": self.location.kind,
            "address": "main",
            "collection": self.location.collection,
            "vector_field": self.location.vector_field,
            "text_field": self.location.text_field,
            "encoder": "old",
            **changes,
        }

    def connect(self, **changes: object) -> None:
        answer = self.client.post("/stores", json=self.definition(**changes))
        assert answer.status_code == 201, answer.text

    def search(self, status: int = 200, **body: object) -> dict:
        body = {"target": "new", "anchor_set": "items", **body}
        if "inputs" not in body:
            body.setdefault("queries", embed(QUERIES, "new").tolist())
        answer = self.client.post("/stores/docs/search", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()


def documents(encoder: str = "old") -> Rows:
    payloads = [{"text": f"document {each}", "even": each % 2 == 0} for each in range(200)]
    return Rows(list(range(200)), embed(DOCUMENTS, encoder), payloads)


#: for tests of what each store's library could take amiss; the others run on the quickest
EVERY_CASE = pytest.mark.parametrize(
    "case", [PgvectorCase(), LocalQdrantCase()], ids=lambda case: case.kind
)


@pytest.fixture
def case() -> StoreCase:
    return LocalQdrantCase()


@pytest.fixture(scope="session")
def filled(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a service that has the encoders and their anchors."""
    folder = tmp_path_factory.mktemp("shop")
    shutil.copy(migrated_sqlite, folder / "anchorage.db")
    app = create_app(Settings(data_dir=folder))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        fill(client)
    return folder


@pytest.fixture
def shop(case: StoreCase, filled: Path, tmp_path: Path) -> Iterator[Shop]:
    shutil.copytree(filled, tmp_path / "data")
    location = case.fill(tmp_path, documents())
    settings = Settings(
        data_dir=tmp_path / "data",
        max_body_bytes=4 * 1024 * 1024,
        max_vectors=2_000,
        stores={"main": location.url, "theirs": StoreEntry(url=location.url, projects=("p2",))},
    )
    app = create_app(settings)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield Shop(client, location, case)
    case.remove(location)


def fill(client: TestClient) -> None:
    """Register the encoders and their anchors."""
    anchors = items(120, 1)
    for name in ENCODERS:
        dim = embed(anchors[:1], name).shape[1]
        body = {"name": name, "kind": "external", "dim": dim}
        assert client.post("/encoders", json=body).status_code == 201
    embeddings = {name: embed(anchors, name).tolist() for name in ENCODERS}
    answer = client.post("/anchor-sets", json={"name": "items", "embeddings": embeddings})
    assert answer.status_code == 201, answer.text
