"""The check of encoders by their anchors: equal ones are silent, changed ones are found."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from app.db import tables
from app.encoders.check import check_all
from app.main import create_app
from app.settings import Settings
from app.wiring import make_services
from tests.encoders.models.remote.endpoints import FakeEndpoint, expected_vectors
from tests.stores.cases.base import Rows
from tests.stores.cases.lancedb import LancedbCase
from tests.waiting import until

TEXTS = [f"{verb} the {thing}" for verb in "abcdefgh" for thing in ("hello", "world", "of", "it")]
TEXTS += [f"{verb} number" for verb in "abcdefgh"]
CASE = LancedbCase()
ANCHORS = 80


def rows_of(texts: list[str], dim: int = 24) -> np.ndarray:
    """What the endpoint makes of texts before it moves."""
    return expected_vectors(texts, dim).numpy()


class Watched:
    """A service with the encoder `ada` of an endpoint, and the set `faq` of ada and `own`."""

    def __init__(self, folder: Path, endpoint: FakeEndpoint) -> None:
        self.endpoint = endpoint
        self.url = endpoint.url
        stores = {"main": str(folder / "lance")}
        self.settings = Settings(data_dir=folder / "data", remote_urls=endpoint.url, stores=stores)
        self.texts = [f"{text} {number}" for number in range(2) for text in TEXTS]
        self.client = TestClient(
            create_app(self.settings), base_url="http://127.0.0.1", raise_server_exceptions=False
        )

    @property
    def services(self) -> Any:
        return self.client.app.state.services  # type: ignore[attr-defined]

    def fill(self) -> None:
        ada = {"kind": "openai", "model": "truth", "options": {"url": self.url}}
        self.post("/encoders", 201, name="ada", **ada)
        self.post("/encoders", 201, name="own", dim=6)
        own = {"own": np.random.default_rng(0).normal(size=(ANCHORS, 6)).tolist()}
        body = {"inputs": self.texts, "encoders": ["ada"], "embeddings": own}
        self.post("/anchor-sets", 201, name="faq", **body)

    def post(self, path: str, status: int = 200, **body: Any) -> Any:
        answer = self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def watch(self) -> dict[str, Any]:
        """What the daily check finds about `ada`."""
        check_all(self.services)
        found: dict[str, Any] = self.client.get("/encoders/ada").json()["last_check"]
        return found

    def check(self) -> dict[str, Any]:
        found: dict[str, Any] = self.post("/encoders/ada/check")
        return found

    def tomorrow(self) -> None:
        """Let the next check be due."""
        with self.services.db.transaction() as session:
            for row in session.query(tables.EncoderRow).filter_by(kind="openai"):
                row.watched_day -= 1

    def connect_store(self, stored: np.ndarray) -> None:
        """Connect `docs`, whose rows have these vectors of ada."""
        rows = Rows(
            CASE.ids(*range(len(self.texts))),
            stored,
            [{"text": text, "number": row} for row, text in enumerate(self.texts)],
        )
        place = CASE.fill(Path(self.settings.data_dir).parent, rows)
        named = {"kind": place.kind, "collection": place.collection, "address": "main"}
        fields = {"vector_field": place.vector_field, "text_field": "text"}
        self.post("/stores", 201, name="docs", encoder="ada", **named, **fields)


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as server:
        yield server


@pytest.fixture
def watched(tmp_path: Path, migrated_sqlite: Path, endpoint: FakeEndpoint) -> Iterator[Watched]:
    (tmp_path / "data").mkdir()
    shutil.copy(migrated_sqlite, tmp_path / "data" / "anchorage.db")
    made = Watched(tmp_path, endpoint)
    with made.client:
        made.fill()
        yield made


@pytest.mark.parametrize("moved", [0.0, 0.01])
def test_an_endpoint_that_moves_by_one_percent_is_found_and_an_equal_one_is_silent(
    watched: Watched, moved: float
) -> None:
    assert watched.watch()["result"] == "unchanged"
    watched.tomorrow()
    watched.endpoint.moved = moved
    found = watched.watch()
    assert found["result"] == ("moved" if moved else "unchanged"), found
    assert found["anchor_set"] == "faq"
    assert (found["max_deviation"] == pytest.approx(moved, rel=0.01)) or not moved
    assert bool(found["recommendations"]) == bool(moved)
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
    watched.endpoint.refusals = [(400, {}, {})] * 9
    assert watched.check()["result"] == "unchecked"
    watched.endpoint.refusals = []
    watched.endpoint.moved = 0.01
    assert watched.check()["result"] == "moved"
    watched.endpoint.refusals = [(400, {}, {})] * 9
    assert watched.check()["result"] == "unchecked"
    assert watched.client.get("/encoders/ada").json()["last_check"]["result"] == "moved"


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


# --- anchors of a store ---------------------------------------------------------------------------


@pytest.fixture
def of_store(watched: Watched, tmp_path: Path) -> Watched:
    """The set `rows` of a store with half-precision vectors of unit length, by ada and ada-2."""
    stored = rows_of(watched.texts)
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)
    watched.connect_store(stored.astype("float16").astype("float32"))
    made = {"kind": "openai", "model": "truth", "options": {"url": watched.url, "dim": 12}}
    watched.post("/encoders", 201, name="small", **made)
    body = {"name": "rows", "store": "docs", "encoders": ["small"], "size": 60}
    job = f"/jobs/{watched.post('/anchor-sets', 202, **body)['id']}"
    until(lambda: watched.client.get(job).json()["state"] == "succeeded")
    watched.client.delete("/anchor-sets/faq")
    return watched


@pytest.mark.parametrize("moved", [0.0, 0.01])
def test_texts_are_read_from_the_store_again(of_store: Watched, moved: float) -> None:
    of_store.endpoint.moved = moved
    found = of_store.post("/encoders/small/check")
    assert found["result"] == ("moved" if moved else "unchanged"), found
    assert (found["anchor_set"], 40 <= found["inputs"] <= 50) == ("rows", True)


def test_texts_reach_no_other_endpoint_unless_the_operator_allows_it(
    of_store: Watched,
) -> None:
    before = len(of_store.endpoint.texts)
    assert of_store.check()["result"] == "unchecked"
    assert len(of_store.endpoint.texts) == before + 1  # the text that loading the model embeds
    entry = of_store.settings.stores["main"].model_copy(update={"remote_texts": True})
    allowed = of_store.settings.model_copy(update={"stores": {"main": entry}})
    services = make_services(allowed)
    try:
        check_all(services)
    finally:
        services.close()
    found = of_store.client.get("/encoders/ada").json()["last_check"]
    assert found["result"] == "unchanged", found  # halved and scaled, as the store holds them


def test_rows_that_were_edited_are_left_out(of_store: Watched, tmp_path: Path) -> None:
    import lancedb

    table = lancedb.connect(str(tmp_path / "lance")).open_table(
        of_store.client.get("/stores/docs").json()["collection"]
    )
    table.update(values={"text": "edited"}, where="text NOT LIKE 'a%'")
    found = of_store.post("/encoders/small/check")
    assert (found["result"], 0 < found["inputs"] < 40) == ("unchanged", True), found


def test_a_set_that_cannot_be_read_hides_no_other(of_store: Watched, tmp_path: Path) -> None:
    small = rows_of(of_store.texts, 12)
    body = {"inputs": of_store.texts, "encoders": [], "embeddings": {"small": small.tolist()}}
    of_store.post("/anchor-sets", 201, name="sent", **body)
    shutil.move(tmp_path / "lance", tmp_path / "away")
    found = of_store.post("/encoders/small/check")
    assert (found["result"], found["anchor_set"]) == ("unchanged", "sent"), found


# --- models in files ------------------------------------------------------------------------------


def test_a_model_whose_file_is_overwritten_is_found_and_the_loaded_one_stays_as_it_was(
    tmp_path: Path, models: Path, complaint: Callable[..., Any]
) -> None:
    file = shutil.copytree(models / "toy", tmp_path / "models" / "toy") / "model.safetensors"
    settings = Settings(data_dir=tmp_path / "data", models_dir=tmp_path / "models")
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        made = {"name": "toy", "kind": "sentence-transformers", "model": "toy"}
        assert client.post("/encoders", json=made).status_code == 201
        body = {"name": "faq", "inputs": TEXTS, "encoders": ["toy"]}
        assert client.post("/anchor-sets", json=body).status_code == 201
        assert client.post("/encoders/toy/check").json()["result"] == "unchanged"

        def embed() -> Any:
            return client.post("/v1/embeddings", json={"model": "toy", "input": "a"}).json()["data"]

        before, original = embed(), file.read_bytes()
        with file.open("r+b") as opened:
            opened.seek(len(original) // 2)  # beyond the header
            opened.write(bytes(len(original) // 2))
        assert embed() == before
        found = client.post("/encoders/toy/check").json()
        assert (found["result"], found["inputs"]) == ("replaced", 0)
        answer = client.post("/anchor-sets", json={**body, "name": "x"})
        assert complaint(answer) == (409, "encoder-changed")
        file.write_bytes(original)
        assert client.post("/encoders/toy/check").json()["result"] == "unchanged"
