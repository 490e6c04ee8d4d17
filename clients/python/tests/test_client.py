from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from anchorage_client import (
    AsyncClient,
    Client,
    ConflictError,
    InvalidRequestError,
    JobFailedError,
    NotFoundError,
    Translator,
)
from anchorage_client.results import translation_of
from anchorage_client.vectors import to_json


def test_a_set_of_any_form_is_the_same_set(client: Client, new_pair, tmp_path, monkeypatch):
    pair = new_pair()
    rows = {pair.source: pair.old, pair.target: pair.new}
    columns = {
        name: pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])
        for name, matrix in rows.items()
    }
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "anchors.parquet")
    client.anchor_sets.create("json", embeddings=rows)
    client.anchor_sets.create("torch", embeddings={n: torch.tensor(m) for n, m in rows.items()})
    client.anchor_sets.create_from_table("arrow", table)
    client.anchor_sets.create_from_parquet("parquet", tmp_path / "anchors.parquet")
    monkeypatch.setattr("anchorage_client._sync.anchors.MAX_JSON_BYTES", 1_000)
    client.anchor_sets.create("npy", embeddings=rows)
    made = [
        client.translator(**{**pair.names, "anchor_set": name}, method="irp").id
        for name in ("json", "torch", "arrow", "parquet", "npy")
    ]
    assert len(set(made)) == 1  # an id is made of contents


def test_a_large_set_that_fails_halfway_leaves_nothing(client: Client, new_pair, monkeypatch):
    pair = new_pair()
    monkeypatch.setattr("anchorage_client._sync.anchors.MAX_JSON_BYTES", 1_000)
    with pytest.raises(ConflictError, match="anchor-count-mismatch") as failed:
        client.anchor_sets.create(
            "half", embeddings={pair.source: pair.old, pair.target: pair.new[:-1]}
        )
    assert failed.value.__notes__ == ["The anchor set 'half' was deleted again."]
    with pytest.raises(NotFoundError):
        client.anchor_sets.get("half")


def test_many_rows_take_several_requests_and_flags_keep_their_rows(client, pair, monkeypatch):
    mean = client.translator(**pair.names).download().source_mean
    rows = np.concatenate([pair.old[:50], mean[None], pair.old[50:]])
    whole = client.translate(rows, **pair.names)
    monkeypatch.setattr("anchorage_client.fields.MAX_ROWS", 37)
    parts = client.translate(rows, **pair.names)
    streamed = np.concatenate(list(client.translate_stream(rows, **pair.names)))
    iterated = np.concatenate(
        list(client.translate_stream(iter([rows[:40], rows[40:]]), **pair.names))
    )
    assert [flag["row"] for flag in whole.flags] == [50]
    assert parts.flags == whole.flags
    for each in (parts.vectors, streamed, iterated):
        np.testing.assert_allclose(each, whole.vectors, rtol=0, atol=1e-5)
    rows[[50, 73], 0] = np.nan

    def stream(*arguments: Any, **names: Any) -> None:
        list(client.translate_stream(*arguments, **names))

    for translate in (client.translate, stream):
        with pytest.raises(InvalidRequestError) as invalid:
            translate(rows, **pair.names)
        assert (invalid.value.status, invalid.value.code) == (422, "non-finite")
        assert (invalid.value.field, invalid.value.rows) == ("vectors", [50, 73])


def test_relative_vectors_and_predictions_of_many_rows_take_several_requests(
    client: Client, pair, monkeypatch
):
    weight = np.eye(2, pair.new.shape[1], dtype=np.float32)
    client.heads.create("axes", encoder=pair.target, classes=["first", "second"], weight=weight)
    space = {"encoder": pair.source, "anchor_set": pair.anchor_set}
    relative = client.relative(pair.old, **space)
    stitched = client.stitch(pair.old, head="axes", **space)
    monkeypatch.setattr("anchorage_client.fields.MAX_ROWS", 37)
    parts = client.relative(pair.old, **space)
    np.testing.assert_allclose(parts.vectors, relative.vectors, rtol=0, atol=1e-6)
    predicted = client.stitch(pair.old, head="axes", **space)
    np.testing.assert_allclose(predicted.scores, stitched.scores, rtol=0, atol=1e-5)
    assert predicted.labels == stitched.labels
    assert predicted.classes == ["first", "second"]
    client.heads.delete("axes")


def test_texts_of_many_requests_keep_their_order(texts, monkeypatch):
    monkeypatch.setattr("anchorage_client.fields.MAX_INPUTS", 8)
    sentences = texts.sentences[:20]
    old = texts.client.embed(sentences, model=texts.old)
    one = texts.client.embed(sentences[17], model=texts.old)
    with pytest.raises(InvalidRequestError) as invalid:
        texts.client.embed([*sentences[:17], "x" * 40_000], model=texts.old)
    assert (invalid.value.code, invalid.value.rows) == ("input-too-long", [17])
    np.testing.assert_allclose(old[17:18], one, rtol=0, atol=1e-5)


def test_parts_of_two_translators_are_not_joined():
    part = {"flags": [], "vectors": to_json(np.ones((1, 2))), "warnings": [{"code": "few"}]}
    one, other = {**part, "translator": "tr_1"}, {**part, "translator": "tr_2"}
    joined = translation_of([one, {**one, "warnings": [{"code": "far"}]}], [0, 1])
    assert [each["code"] for each in joined.warnings] == ["few", "far"]
    with pytest.raises(ConflictError, match="changed between two requests"):
        translation_of([one, other], [0, 1])


def test_a_failed_pool_leaves_nothing_and_a_text_is_no_list(client: Client, pair, monkeypatch):
    monkeypatch.setattr("anchorage_client.fields.MAX_ROWS", 37)
    rows = pair.old.copy()
    rows[73, 0] = np.nan
    with pytest.raises(InvalidRequestError) as invalid:
        client.pools.create("torn", encoder=pair.source, vectors=rows)
    assert invalid.value.rows == [73]
    with pytest.raises(NotFoundError):
        client.pools.get("torn")
    between, sets = client.pair(*pair.names.values()), client.anchor_sets
    for call in (
        lambda: client.translate(inputs="wing flutter", **pair.names),
        lambda: between.search("docs", inputs="wing flutter"),
        lambda: client.stitch(inputs="wing flutter", encoder=pair.source, head="h"),
        lambda: client.rerank("wings", "wing flutter", model=pair.source),
        lambda: sets.create("text", inputs="wing flutter"),
        lambda: sets.put(pair.anchor_set, pair.source, inputs="wing flutter"),
        lambda: sets.create_from_store("text", "docs", encoders="wing flutter"),
    ):
        with pytest.raises(TypeError, match=r"a list of texts: send \['wing flutter'\]"):
            call()


def test_a_table_keeps_its_other_columns(client: Client, pair):
    column = pa.FixedSizeListArray.from_arrays(pa.array(pair.old.ravel()), pair.old.shape[1])
    table = pa.table({"id": range(len(pair.old)), "vectors": column})
    found = client.translate_table(table, **pair.names)
    assert found["id"].to_pylist() == list(range(len(pair.old)))
    expected = client.translate(pair.old, **pair.names).vectors
    np.testing.assert_array_equal(
        np.stack([np.asarray(row, np.float32) for row in found["vectors"].to_pylist()]), expected
    )


def test_advice_evaluation_and_rankings(client: Client, pair):
    advice = client.advice(**pair.names, index=10_000, old_encoder_runs=False, text_exists=True)
    names = {option["name"] for option in advice["options"]}
    assert (
        advice["advice"] in names == {"keep", "cascade", "fuse", "native", "translate", "re-embed"}
    )
    measured = client.evaluate(**pair.names, vectors=pair.old, native=pair.new)
    assert measured["translated"]["mrr"] > 0.5
    items = {"queries": pair.new[:3], "documents": pair.old}
    rows = client.evaluate(**pair.names, **items, judgements=[{"query": 1, "document": 1}])
    judged = {**items, "query_ids": ["a", "b", "c"], "judgements": [{"query": "b", "document": 1}]}
    assert client.evaluate(**pair.names, **judged) == rows
    with pytest.raises(ValueError, match="query_ids"):
        client.evaluate(**pair.names, **judged | {"query_ids": ["x", "y", "z"]})
    candidates = [{"ids": [f"d{i}" for i in range(20)], "vectors": pair.old[:20]}] * 2
    rankings = client.rescore(**pair.names, queries=pair.new[[3, 7]], candidates=candidates)
    assert [ranking.ids[0] for ranking in rankings] == ["d3", "d7"]


def test_a_bootstrap_runs_as_a_job(client: Client, new_pair):
    pair = new_pair(anchors=2, others=100)
    for name, encoder, rows in (("a", pair.source, pair.old), ("b", pair.target, pair.new)):
        client.pools.create(name, encoder=encoder, vectors=rows)
    made = {"source": pair.source, "target": pair.target}
    made |= {"source_pool": "a", "target_pool": "b"}
    seeds = [(i, i) for i in range(20)]
    job = client.bootstrap("found", **made, seeds=seeds, min_precision=0, as_job=True)
    assert repr(job).endswith("bootstrap, queued>")
    with pytest.raises(TimeoutError, match="wait"):
        job.result()
    seen: list[dict[str, Any]] = []
    result = job.wait(timeout=200, progress=seen.append)
    assert seen[-1] == job.progress
    assert np.mean([source == target for source, target in result["pairs"]]) > 0.8
    wrong = [(i, (i + 50) % 100) for i in range(20)]
    again = client.bootstrap("none", **made, seeds=wrong, min_precision=0.95, as_job=True)
    with pytest.raises(JobFailedError) as failed:
        again.wait()
    assert failed.value.code == "seeds-insufficient"


def test_the_asynchronous_client_does_the_same(service: str, client: Client, pair):
    async def run() -> None:
        async with AsyncClient(service) as remote:
            one = await remote.translate(pair.old, **pair.names)
            fitted = await remote.translator(**pair.names)
            streamed = [part async for part in remote.translate_stream(pair.old, **pair.names)]
            np.testing.assert_array_equal(streamed[0], one.vectors)
            local = await fitted.apply_locally(pair.old)
            np.testing.assert_allclose(local, one.vectors, rtol=0, atol=1e-5)
            assert pair.source in {each["name"] for each in await remote.encoders.list()}

    asyncio.run(run())


def test_lists_read_all_pages(client: Client):
    names = [f"many-{number:03}" for number in range(105)]  # a page has 100
    for name in names:
        client.encoders.create(name, dim=2)
    listed = [each["name"] for each in client.encoders.list()]
    assert [name for name in listed if name.startswith("many-")] == names
    for name in names:
        client.encoders.delete(name)


def test_a_name_is_created_kept_listed_and_deleted(texts):
    client = texts.client
    made = client.names.create("plain", model := "old->new@faq")
    assert (made["name"], made["model"]) == ("plain", model)
    assert client.names.get("plain") == made == client.names.get_or_create("plain", model=model)
    with pytest.raises(NotFoundError, match="no store named 'nothing'"):
        client.names.get_or_create("of-a-store", store="nothing")
    assert made in client.names.list()
    with pytest.raises(ConflictError, match="the name 'plain'"):
        client.encoders.delete("new")
    client.names.delete("plain")
    assert made not in client.names.list()


def test_a_pair_asks_with_its_names_and_a_translator_is_found_again(client: Client, pair):
    between = client.pair(*pair.names.values())
    vectors = between.translate(pair.old[:5]).vectors
    np.testing.assert_array_equal(vectors, client.translate(pair.old[:5], **pair.names).vectors)
    candidates = [{"ids": list(range(9)), "vectors": pair.old[:9]}]
    ranked = between.rescore(candidates, queries=pair.new[:1])
    asked = client.rescore(candidates=candidates, queries=pair.new[:1], **pair.names)
    assert ranked.results == asked.results
    made = between.translator()
    found: Translator = client.translators.get(made.id, index=1_000_000)
    assert found.report["estimate"]["index"] == 1_000_000
    assert made.quality is not None
    assert found.threshold(source=0.5)["source"] == 0.5
    assert between.advice(index=10_000)["basis"] == "fidelity"
    assert repr(between) == f"Pair({', '.join(map(repr, pair.names.values()))})"


def test_what_exists_is_not_created_again(client: Client, pair):
    first = client.encoders.get_or_create("once", dim=3)
    assert client.encoders.get_or_create("once", dim=3) == first
    with pytest.raises(ConflictError, match="'once' exists with `dim` 3, not 768"):
        client.encoders.get_or_create("once", dim=768)
    of_store = {"name": pair.anchor_set, "store": "docs"}  # nothing is made: the set exists
    found = client.anchor_sets.get_or_create(**of_store, encoders=[pair.target])
    assert found == client.anchor_sets.get(pair.anchor_set)
    with pytest.raises(ConflictError, match="with `encoders`"):
        client.anchor_sets.get_or_create(**of_store, encoders=["once"])


def test_a_translator_and_a_set_of_texts_are_made_by_jobs(texts):
    job = texts.client.translator(**texts.pair, as_job=True)
    fitted: Translator = job.wait(timeout=100)
    assert fitted.id == texts.client.translator(**texts.pair).id
    embeddings = {"mine": np.random.default_rng(0).normal(size=(20, 3))}
    texts.client.encoders.create("mine", dim=3)
    made = texts.client.anchor_sets.create(
        "of-texts",
        inputs=texts.sentences[:20],
        encoders=["old"],
        embeddings=embeddings,
        as_job=True,
    )
    assert set(made.wait(timeout=100)["encoders"]) == {"mine", "old"}
    with pytest.raises(ValueError, match="only applies to inputs"):
        texts.client.anchor_sets.create("vectors", embeddings=embeddings, as_job=True)
