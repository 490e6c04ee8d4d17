"""/rescore: candidates of a store in the order of the new encoder."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
import torch

from app.maths.relevance.fuse_weight import default_weight, held_out_cosine
from tests.api.resources.translations import PAIR

NPY, ARROW = "application/x-npy", "application/vnd.apache.arrow.stream"
COUNTS = [4, 0, 7]


@pytest.fixture
def cloud(embeddings):
    """New queries, old queries, and the old vectors of each query's candidates."""
    generator = np.random.default_rng(3)
    queries = generator.normal(size=(3, 6))
    old_queries = generator.normal(size=(3, 8))
    return queries, old_queries, [generator.normal(size=(count, 8)) for count in COUNTS]


@pytest.fixture
def ask(stocked, cloud):
    """POST /rescore of the cloud; a value of ... leaves a field out."""
    queries, _, blocks = cloud

    def post(**more):
        body = {**PAIR, "method": "graded", "queries": queries.tolist(), **more}
        body.setdefault("candidates", listed(blocks))
        return stocked.post(
            "/rescore", json={key: value for key, value in body.items() if value is not ...}
        )

    return post


def listed(blocks):
    return [
        {"ids": [f"{query}-{row}" for row in range(len(block))], "vectors": block.tolist()}
        for query, block in enumerate(blocks)
    ]


def cosines(query, vectors):
    return vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)


def translated(client, block):
    answer = client.post("/translate", json={**PAIR, "method": "graded", "vectors": block.tolist()})
    return np.array(answer.json()["vectors"])


def files(*arrays):
    body = io.BytesIO()
    for array in arrays:
        np.save(body, array)
    return body.getvalue()


def stream_of(table, rows_per_batch=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return sink.getvalue().to_pybytes()


def table_of(queries, old_queries, blocks, *, ids=True, **more):
    vector = pa.list_(pa.float64())
    columns = {
        "query": pa.array(queries.tolist(), vector),
        "vectors": pa.array([block.tolist() for block in blocks], pa.list_(vector)),
        "old_query": pa.array(old_queries.tolist(), vector),
        **more,
    }
    if ids:
        columns["ids"] = pa.array([each["ids"] for each in listed(blocks)], pa.list_(pa.string()))
    return pa.table(columns)


def url(**fields):
    every = {**PAIR, "method": "graded", **fields}
    return "/rescore?" + "&".join(f"{name}={value}" for name, value in every.items())


def post(client, body, media, accept=None, **fields):
    headers = {"Content-Type": media} | ({} if accept is None else {"Accept": accept})
    return client.post(url(**fields), content=body, headers=headers)


# --- scores and order -----------------------------------------------------------------------------


def test_a_cascade_scores_by_the_cosine_of_the_translated_candidate(ask, stocked, cloud):
    queries, _, blocks = cloud
    answer = ask().json()
    assert (answer["mode"], answer["weight"], answer["weight_chosen_by"]) == ("cascade", None, None)
    assert (answer["method"], answer["flags"]) == ("graded", [])
    assert answer["translator"].startswith("tr_")
    for query, block, result in zip(queries, blocks, answer["results"], strict=True):
        assert len(result["ids"]) == len(block)
        if len(block):
            scores = cosines(query, translated(stocked, block))
            order = [int(each.partition("-")[2]) for each in result["ids"]]
            assert order == np.argsort(-scores).tolist()
            np.testing.assert_allclose(result["scores"], scores[order], atol=1e-6)


@pytest.mark.parametrize("weight", [None, 0, 0.4, 1])
def test_fused_scores_are_standardised_for_each_query_and_weighted(
    ask, stocked, cloud, weight, embeddings
):
    queries, old_queries, blocks = cloud
    answer = ask(mode="fuse", old_queries=old_queries.tolist(), weight=weight).json()
    x, y = (torch.from_numpy(embeddings[name]).float() for name in ("first", "second"))
    used = default_weight(held_out_cosine(x, y)) if weight is None else weight
    assert answer["weight"] == used
    assert answer["weight_chosen_by"] == ("default" if weight is None else "request")
    for query, old, block, result in zip(
        queries, old_queries, blocks, answer["results"], strict=True
    ):
        if len(block):
            new_scores, old_scores = cosines(query, translated(stocked, block)), cosines(old, block)
            z_new = (new_scores - new_scores.mean()) / new_scores.std()
            z_old = (old_scores - old_scores.mean()) / old_scores.std()
            scores = used * z_new + (1 - used) * z_old
            order = [int(each.partition("-")[2]) for each in result["ids"]]
            assert order == np.argsort(-scores).tolist()
            np.testing.assert_allclose(result["scores"], scores[order], atol=1e-4)


def test_ids_are_returned_as_sent_and_may_repeat(ask, cloud):
    ids = ["a", 7, "7", 2**63 - 1]
    candidates = [{"ids": ids, "vectors": cloud[2][0].tolist()}]
    found = ask(queries=cloud[0][:1].tolist(), candidates=candidates).json()["results"][0]["ids"]
    assert sorted(map(repr, found)) == sorted(map(repr, ids))
    candidates[0]["ids"] = ["a"] * 4
    answer = ask(queries=cloud[0][:1].tolist(), candidates=candidates)
    assert answer.json()["results"][0]["ids"] == ["a"] * 4


def test_no_candidates_at_all_give_empty_results(ask, cloud):
    empty = [{"ids": [], "vectors": []}] * 3
    answer = ask(candidates=empty)
    assert answer.json()["results"] == [{"ids": [], "scores": []}] * 3
    assert ask(candidates=empty, queries=[[1.0] * 5] * 3).status_code == 422


def test_flags_name_query_and_candidate(ask, embeddings, cloud):
    blocks = [each.copy() for each in cloud[2]]
    blocks[2][5] = embeddings["first"].mean(axis=0)
    flags = ask(candidates=listed(blocks)).json()["flags"]
    assert flags == [{"query": 2, "candidate": 5, "code": "equals-anchor-mean"}]


# --- formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows_per_batch", [None, 1, 2])
def test_arrow_has_one_row_for_each_query_(ask, stocked, cloud, rows_per_batch):
    more = {"mode": "fuse", "weight": 0.5}
    expected = ask(**more, old_queries=cloud[1].tolist()).json()["results"]
    table = table_of(*cloud)
    body = stream_of(table, rows_per_batch)
    answer = post(stocked, body, ARROW, **more)
    assert answer.headers["content-type"] == ARROW, answer.text
    found = pa.ipc.open_stream(answer.content).read_all()
    assert found.column_names == ["ids", "scores"]
    assert found.schema.metadata[b"anchorage.mode"] == b"fuse"
    for row, result in zip(found.to_pylist(), expected, strict=True):
        assert row["ids"] == result["ids"]
        np.testing.assert_allclose(row["scores"], result["scores"], atol=1e-6)
    as_json = post(stocked, body, ARROW, "application/json", **more).json()["results"]
    assert [each["ids"] for each in as_json] == [each["ids"] for each in expected]


# --- bad ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"queries": ...}, 422, "not-exactly-one", "queries"),
        ({"inputs": ["a", "b", "c"]}, 422, "not-exactly-one", "inputs"),
        ({"old_queries": [[1.0] * 8] * 3}, 422, "invalid-request", "old_queries"),
        ({"mode": "fuse"}, 422, "missing-field", "old_queries"),
        ({"mode": "fuse", "old_queries": [[1.0] * 8] * 2}, 422, "invalid-request", "old_queries"),
        ({"queries": [[1.0] * 8] * 3}, 422, "dimension-mismatch", "queries"),
        ({"queries": [[1.0] * 6] * 2}, 422, "invalid-request", "candidates"),
        ({"inputs": ["a"] * 3, "queries": ...}, 422, "encoder-needs-vectors", "inputs"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_request_is_refused(ask, refused, change, status, code, field):
    refused(ask(**change), status, code, field)


@pytest.mark.parametrize(
    ("one", "code", "field"),
    [
        ({"ids": ["a"], "vectors": [[1.0] * 8] * 2}, "invalid-request", "candidates.1.vectors"),
        ({"ids": ["a"], "vectors": [[1.0] * 6]}, "dimension-mismatch", "candidates.1.vectors"),
        ({"ids": [1.5], "vectors": [[1.0] * 8]}, "invalid-request", "candidates.1.ids"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_candidates_are_refused_by_query(ask, cloud, one, code, field):
    answer = ask(candidates=[listed(cloud[2])[0], one, listed(cloud[2])[2]])
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert answer.json()["field"] == field


def test_nan_is_refused_by_query_and_row(ask, stocked, cloud, packed, refused):
    block = cloud[2][2].copy()
    block[[2, 5], 1] = np.nan
    candidates = listed(cloud[2])
    candidates[2]["vectors"] = packed(block)
    refused(ask(candidates=candidates), 422, "non-finite", "candidates.2.vectors", [2, 5])
    stacked = np.stack([cloud[2][2], block])
    answer = post(stocked, files(cloud[0][:2], stacked), NPY)
    refused(answer, 422, "non-finite", "candidates.1.vectors", [2, 5])


def test_the_limit_of_vectors_holds_for_all_candidates_together(stocked, cloud, refused):
    stored = np.ones((3, 700, 8), np.float32)
    answer = post(stocked, files(cloud[0], stored), NPY)
    refused(answer, 413, "too-many-vectors", "candidates")
    assert answer.json()["limit"] == 2_000


def test_the_limit_of_queries_holds_without_candidates(ask, stocked, refused):
    few = [{"ids": [], "vectors": 0}] * 2_001  # refused before it is validated
    refused(ask(candidates=few), 413, "too-many-vectors", "candidates")
    table = table_of(np.ones((2_001, 6)), np.ones((2_001, 8)), [np.empty((0, 8))] * 2_001)
    refused(post(stocked, stream_of(table), ARROW), 413, "too-many-vectors", "vectors")


def test_wrong_npy_bodies_are_refused(stocked, cloud, refused):
    queries, old_queries, blocks = cloud
    stored = np.stack([blocks[0]] * 3)
    refused(post(stocked, b"", NPY), 400, "bad-npy", "queries")
    refused(post(stocked, files(queries), NPY), 400, "bad-npy", "candidates")
    refused(post(stocked, files(queries, blocks[0]), NPY), 422, "bad-shape", "vectors")
    refused(post(stocked, files(queries, stored)[:-8], NPY), 400, "bad-npy", "vectors")
    refused(post(stocked, files(queries, stored) + b"x", NPY), 400, "bad-npy", "old_queries")
    four = files(queries, stored, old_queries, old_queries)
    refused(post(stocked, four, NPY, mode="fuse"), 400, "bad-npy", "queries")
    answer = post(stocked, files(queries, stored), NPY, accept=ARROW)
    refused(answer, 406, "not-acceptable", "Accept")


def test_wrong_arrow_bodies_are_refused(stocked, cloud, refused):
    table = table_of(*cloud)
    vector = pa.list_(pa.float64())

    def change(**columns):
        changed = {name: table[name] for name in table.column_names}
        return post(stocked, stream_of(pa.table({**changed, **columns})), ARROW, mode="fuse")

    assert change().status_code == 200
    without = stream_of(table.drop_columns(["vectors"]))
    refused(post(stocked, without, ARROW), 422, "bad-column", "vectors")
    short = pa.array([["a"], [], ["b"] * 7], pa.list_(pa.string()))
    refused(change(ids=short), 422, "bad-column", "ids", [0])
    refused(change(ids=pa.array([[0.5], [], []], vector)), 422, "bad-dtype", "ids")
    refused(change(vectors=table["query"]), 422, "bad-dtype", "vectors")
    blocks = [block.tolist() for block in cloud[2]]
    blocks[2][3] = blocks[2][3][:-1]
    ragged = pa.array(blocks, pa.list_(vector))
    refused(change(vectors=ragged), 422, "ragged-rows", "candidates.2.vectors", [3])
    nothing = pa.array([None, [], []], pa.list_(vector))
    refused(change(vectors=nothing), 422, "bad-column", "vectors", [0])
    refused(change(other=pa.array([1, 2, 3])), 422, "bad-column", "other")
