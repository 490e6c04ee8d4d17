"""The check of encoders: by their anchors, by their files, and by vectors of a client."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pytest
from starlette.testclient import TestClient

from app.db import tables
from app.encoders.check import check_all
from app.settings import Settings
from app.wiring import make_services
from tests.encoders.models.remote.endpoints import FakeEndpoint, expected_vectors
from tests.encoders.models.sentence_models import PACKAGED, sentence_transformers, st_modules
from tests.waiting import until

TEXTS = [
    f"{verb} the {thing}"
    for verb in "abcdefgh"
    for thing in ["hello", "world", "number", "of", "it"]
]
ANCHORS = 80


def rows_of(texts: list[str], dim: int = 24) -> np.ndarray:
    """What the endpoint makes of texts before it moves."""
    return expected_vectors(texts, dim).numpy()


class Watched:
    """A service with the encoder `ada` of an endpoint, and the set `faq` of ada and `own`."""

    def __init__(self, client: TestClient, settings: Settings, endpoint: FakeEndpoint) -> None:
        self.client, self.settings, self.endpoint = client, settings, endpoint
        self.services = client.app.state.services  # type: ignore[attr-defined]
        self.texts = [f"{text} {number}" for number in range(2) for text in TEXTS]
        self.register("ada")
        self.post("/encoders", 201, name="own", dim=6)
        own = np.random.default_rng(0).normal(size=(ANCHORS, 6)).tolist()
        filled = {"inputs": self.texts, "encoders": ["ada"], "embeddings": {"own": own}}
        self.post("/anchor-sets", 201, name="faq", **filled)

    def register(self, name: str, **options: Any) -> None:
        options["url"] = self.endpoint.url
        self.post("/encoders", 201, name=name, kind="openai", model="truth", options=options)

    def post(self, path: str, status: int = 200, **body: Any) -> Any:
        answer = self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def last_check(self, name: str = "ada") -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/encoders/{name}").json()["last_check"]
        return found

    def check(self, name: str = "ada") -> dict[str, Any]:
        found: dict[str, Any] = self.post(f"/encoders/{name}/check")
        return found

    def tomorrow(self) -> None:
        """Let the next check be due."""
        with self.services.db.transaction() as session:
            for row in session.query(tables.EncoderRow).filter_by(kind="openai"):
                row.watched_day -= 1

    def connect_store(self, stored: np.ndarray) -> None:
        """Connect `docs`, whose rows have these vectors of ada."""
        rows = zip(self.texts, stored, strict=True)
        table = [{"id": id_, "text": text, "vector": row} for id_, (text, row) in enumerate(rows)]
        lancedb.connect(str(self.settings.data_dir / "lance")).create_table("items", table)
        place = {"kind": "lancedb", "address": "main", "collection": "items", "text_field": "text"}
        self.post("/stores", 201, name="docs", encoder="ada", **place)


@pytest.fixture
def watched(serve: Callable[..., TestClient], data_dir: Path, endpoint: FakeEndpoint) -> Watched:
    places = {"remote_urls": endpoint.url, "stores": {"main": str(data_dir / "lance")}}
    return Watched(serve(**places), Settings(data_dir=data_dir, **places), endpoint)


def test_an_endpoint_that_moves_by_one_percent_is_found_and_an_equal_one_is_silent(
    watched: Watched,
) -> None:
    for moved, result in ((0.0, "unchanged"), (0.01, "moved")):
        watched.endpoint.moved = moved
        check_all(watched.services)
        found = watched.last_check()
        assert (found["result"], found["anchor_set"]) == (result, "faq"), found
        assert found["max_deviation"] == pytest.approx(moved, rel=0.01, abs=1e-5)
        assert bool(found["recommendations"]) == bool(moved)
        watched.tomorrow()
    watched.endpoint.moved = 0.0
    assert watched.check()["result"] == "unchanged"  # the old model is back


def test_vectors_that_the_service_did_not_make_are_no_baseline_until_they_were_equal(
    watched: Watched,
) -> None:
    watched.client.delete("/anchor-sets/faq")
    for name, title, expected in (("titled", "title ", "unchecked"), ("equal", "", "unchanged")):
        sent = rows_of([f"{title}{text}" for text in watched.texts]).tolist()
        body = {"inputs": watched.texts, "encoders": [], "embeddings": {"ada": sent}}
        watched.post("/anchor-sets", 201, name=name, **body)
        found = watched.check()
        assert (found["result"], found["anchor_set"]) == (expected, name), found
        answer = watched.client.post("/v1/embeddings", json={"model": "ada", "input": "hello"})
        assert "anchorage-warnings" not in answer.headers
    watched.endpoint.moved = 0.01
    assert watched.check()["result"] == "moved"


def test_an_endpoint_whose_answers_always_differ_is_silent_within_its_own_noise(
    watched: Watched,
) -> None:
    watched.endpoint.noise = 0.01
    found = watched.check()
    assert (found["result"], found["noise"] > 0.005) == ("unchanged", True), found
    watched.endpoint.moved = 0.2
    assert watched.check()["result"] == "moved"


def test_at_most_fifty_inputs_a_day_over_workers_and_restarts(watched: Watched) -> None:
    watched.endpoint.moved = 0.01  # a deviation is embedded twice, the most expensive case
    others = [make_services(watched.settings) for _ in range(3)]
    try:
        for _ in range(2):
            before = len(watched.endpoint.texts)
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(check_all, [watched.services, *others]))
            restarted = make_services(watched.settings)
            others.append(restarted)
            check_all(restarted)
            assert 0 < len(watched.endpoint.texts) - before <= 50
            watched.tomorrow()
    finally:
        for each in others:
            each.close()


def test_an_endpoint_that_is_away_is_no_finding_and_clears_none(watched: Watched) -> None:
    watched.endpoint.refusals = [(400, {}, {})] * 2
    assert watched.check()["result"] == "unchecked"
    watched.endpoint.moved = 0.01
    assert watched.check()["result"] == "moved"
    watched.endpoint.refusals = [(400, {}, {})] * 2
    assert watched.check()["result"] == "unchecked"
    assert watched.last_check()["result"] == "moved"


def test_another_name_of_the_endpoints_model_is_found_without_anchors(watched: Watched) -> None:
    watched.endpoint.model = "truth-2027-01"
    found = watched.check()
    assert (found["result"], found["inputs"]) == ("replaced", 0)
    assert "revision" in found["detail"]


def test_a_changed_encoder_warns_searches_and_stores_nothing(watched: Watched) -> None:
    body = {"source": "ada", "target": "own", "anchor_set": "faq", "inputs": ["hello"]}
    assert "encoder-changed" not in watched.client.post("/translate", json=body).text
    watched.connect_store(rows_of(watched.texts))
    watched.endpoint.moved = 0.01
    watched.check()
    until(lambda: "encoder-changed" in watched.client.post("/translate", json=body).text)
    search = {"target": "ada", "inputs": ["hello"], "k": 3}
    found = watched.post("/stores/docs/search", **search)
    assert [each["code"] for each in found["warnings"]] == ["encoder-changed"]
    answer = watched.client.post("/v1/embeddings", json={"model": "ada", "input": "hello"})
    assert "encoder-changed" in answer.headers["anchorage-warnings"]
    body = {"name": "x", "inputs": ["a", "b"], "encoders": ["ada"]}
    assert watched.post("/anchor-sets", 409, **body)["code"] == "encoder-changed"
    put = watched.client.put("/pools/x", json={"encoder": "ada", "inputs": ["a", "b"]})
    assert put.json()["code"] == "encoder-changed"


# Anchors of a store


@pytest.fixture
def of_store(watched: Watched, finished: Callable[..., dict[str, Any]]) -> Watched:
    """The set `rows` of a store with half-precision vectors of unit length, by ada and `small`."""
    stored = rows_of(watched.texts)
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)
    watched.connect_store(stored.astype("float16").astype("float32"))
    watched.register("small", dim=12)
    body = {"name": "rows", "store": "docs", "encoders": ["small"], "size": 60}
    job = watched.post("/anchor-sets", 202, **body)
    assert finished(watched.client, job["id"])["state"] == "succeeded"
    watched.client.delete("/anchor-sets/faq")
    return watched


def test_texts_are_read_from_the_store_again_except_for_edited_rows(
    of_store: Watched, data_dir: Path
) -> None:
    found = of_store.check("small")
    assert (found["result"], found["anchor_set"]) == ("unchanged", "rows"), found
    assert 40 <= found["inputs"] <= 50
    table = lancedb.connect(str(data_dir / "lance")).open_table("items")
    table.update(values={"text": "edited"}, where="text NOT LIKE 'a%'")
    found = of_store.check("small")
    assert (found["result"], 0 < found["inputs"] < 40) == ("unchanged", True), found
    of_store.endpoint.moved = 0.01
    assert of_store.check("small")["result"] == "moved"


def test_texts_reach_no_other_endpoint_unless_the_operator_allows_it(
    of_store: Watched,
) -> None:
    before = len(of_store.endpoint.texts)
    assert of_store.check()["result"] == "unchecked"
    assert len(of_store.endpoint.texts) == before + 1  # the text that loading the model embeds
    entry = of_store.settings.stores["main"].model_copy(update={"remote_texts": True})
    services = make_services(of_store.settings.model_copy(update={"stores": {"main": entry}}))
    try:
        check_all(services)
    finally:
        services.close()
    found = of_store.last_check()
    assert found["result"] == "unchanged", found  # halved and scaled, as the store holds them


# Models in files


def test_changed_files_are_found_without_embedding_and_change_no_loaded_weights(
    serve, tmp_path, models, complaint
):
    shutil.copytree(models / "toy", tmp_path / "models" / "toy")
    client, file = serve(models_dir=tmp_path / "models"), tmp_path / "models/toy/model.safetensors"
    made = {"name": "toy", "kind": "sentence-transformers", "model": "toy"}
    assert client.post("/encoders", json=made).status_code == 201
    body = {"name": "faq", "inputs": TEXTS, "encoders": ["toy"]}
    assert client.post("/anchor-sets", json=body).status_code == 201
    assert client.post("/encoders/toy/check").json()["result"] == "unchanged"

    def embed():
        answer = client.post("/v1/embeddings", json={"model": "toy", "input": "a"})
        return answer.json()["data"][0]["embedding"]

    before, original = embed(), file.read_bytes()
    with file.open("r+b") as opened:  # in place, beyond the header
        opened.seek(len(original) // 2)
        opened.write(bytes(len(original) // 2))
    assert embed() == before  # the old model is still in memory
    found = client.post("/encoders/toy/check").json()
    assert (found["result"], found["inputs"]) == ("replaced", 0)
    answer = client.post("/anchor-sets", json={**body, "name": "x"})
    assert complaint(answer) == (409, "encoder-changed")
    file.write_bytes(original)
    assert client.post("/encoders/toy/check").json()["result"] == "unchanged"


# Vectors of a client


@pytest.fixture
def compare(encoding):
    """POST /check of these vectors, for the packaged encoder."""

    def ask(inputs, vectors):
        body = {"inputs": inputs, "vectors": np.asarray(vectors, dtype=float).tolist()}
        answer = encoding.http.post("/encoders/minilm/check", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


@pytest.fixture(scope="module")
def library():
    """The client's own copy of minilm."""
    return sentence_transformers.SentenceTransformer(str(PACKAGED), device="cpu")


def pooled(model, texts, mode):
    modules = [model[0], st_modules.Pooling(384, pooling_mode=mode), st_modules.Normalize()]
    return sentence_transformers.SentenceTransformer(modules=modules, device="cpu").encode(texts)


#: cause -> what the detail says, and the client's vectors
CAUSES = {
    "normalisation": ("lengths", lambda model, texts: model.encode(texts) * 3.7),
    "prompt": (
        "'query: '",
        lambda model, texts: model.encode([f"query: {each}" for each in texts]),
    ),
    "pooling": ("cls pooling", lambda model, texts: pooled(model, texts, "cls")),
    "unknown": ("deviation is ", lambda model, texts: model.encode(texts[::-1])),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_difference_is_explained_by_its_cause(compare, encoding, library, cause):
    texts, (says, make) = encoding.texts[:12], CAUSES[cause]
    found = compare(texts, make(library, texts))
    assert (found["result"], found["likely_cause"]) == ("different", cause), found
    assert says in found["detail"].lower()


@pytest.mark.parametrize("value", [0.0, 1e30])
def test_vectors_at_the_ends_of_the_range_are_a_difference_and_no_fault(compare, value):
    assert compare(["a card"], [[value] * 384])["result"] == "different"


@pytest.mark.parametrize(
    ("encoder", "change", "status", "code", "field"),
    [
        ("unknown", {}, 404, "encoder-not-found", "name"),
        ("own", {}, 422, "encoder-needs-vectors", "name"),
        ("minilm", {"inputs": ["a", "b"]}, 422, "dimension-mismatch", "vectors"),
        ("minilm", {"vectors": [[0.5] * 256]}, 422, "dimension-mismatch", "vectors"),
        ("minilm", {"inputs": ["a"] * 65}, 413, "too-many-inputs", "inputs"),
        ("eye", {"inputs": ["text"], "vectors": [[0.5] * 24]}, 422, "invalid-image", "inputs"),
    ],
)
def test_a_wrong_request_is_refused(encoding, encoder, change, status, code, field):
    body = {"inputs": ["a"], "vectors": [[0.5] * 384], **change}
    answer = encoding.http.post(f"/encoders/{encoder}/check", json=body)
    found = answer.status_code, answer.json()["code"], answer.json()["field"]
    assert found == (status, code, field), answer.text
