"""/pools, and bootstraps that name one."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import ipc

from app.api.codecs import media_types
from app.services.anchors import anchor_sets, pools
from app.services.encoders import encoding as encoding_service
from app.services.request_context import RequestContext
from app.storage.blobs import BlobStore
from app.storage.queries import resources

JSON, NPY, ARROW = "application/json", media_types.NPY, media_types.ARROW
ROWS = np.random.default_rng(11).normal(size=(30, 8)).astype(np.float32)


def as_npy(rows):
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue()


def as_arrow(rows, name="vector", **more):
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    table = pa.table({name: column, **more})
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=7):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def put(client, rows=ROWS, name="p", encoder="first"):
    return client.put(
        f"/pools/{name}", json={"encoder": encoder, "vectors": np.asarray(rows).tolist()}
    )


def add(client, offset, rows=ROWS, name="p"):
    return client.post(
        f"/pools/{name}/vectors", json={"offset": offset, "vectors": np.asarray(rows).tolist()}
    )


def stored(client, name="p", project="default"):
    """The pool's items as a bootstrap reads them, and the number of pieces."""
    services = client.app.state.services
    with services.db.transaction() as session:
        pieces = resources.whole_pool(session, project, name).pieces
    return pools.load_items(services, [piece["blob"] for piece in pieces]).numpy(), len(pieces)


# --- pieces ---------------------------------------------------------------------------------------


def test_a_pool_is_created_listed_read_and_deleted(stocked, refused):
    answer = put(stocked)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == "/pools/p"
    created = answer.json()
    assert created.pop("created_at")
    assert created == {"name": "p", "encoder": "first", "items": 30, "dim": 8, "bytes": 30 * 8 * 4}
    assert stocked.get("/pools/p").json() == answer.json()
    assert stocked.get("/pools").json() == {"pools": [answer.json()]}
    deleted = stocked.delete("/pools/p")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert stocked.get("/pools").json() == {"pools": []}
    refused(stocked.get("/pools/p"), 404, "pool-not-found", "name", detail="'p'")
    refused(stocked.delete("/pools/p"), 404, "pool-not-found", "name")
    refused(add(stocked, 30), 404, "pool-not-found", "name")


def test_pieces_of_every_form_make_one_pool_of_the_same_numbers(stocked, packed):
    """The numbers are float16, which every form holds exactly."""
    rows = ROWS.astype(np.float16)
    pieces = [
        (JSON, lambda at, part: json.dumps({**at, "vectors": part.tolist()}).encode(), {}),
        (
            JSON,
            lambda at, part: json.dumps({**at, "vectors": packed(part, "float64")}).encode(),
            {},
        ),
        (
            JSON,
            lambda at, part: json.dumps({"vectors": packed(part, "float16")}).encode(),
            {"in": "query"},
        ),
        (NPY, lambda at, part: as_npy(part), {"in": "query"}),
        (NPY, lambda at, part: as_npy(np.asfortranarray(part.astype("f8"))), {"in": "query"}),
        (ARROW, lambda at, part: as_arrow(part, id=pa.array(range(len(part)))), {"in": "query"}),
    ]
    for first in range(len(pieces)):
        name, end = f"p{first}", 0
        for media, write, how in [*pieces[first:], *pieces[:first]]:
            at = {"offset": end} if end else {"encoder": "first"}
            part = rows[end : end + 4]
            params = {
                **(at if "in" in how else {}),
                **{key: value for key, value in how.items() if key != "in"},
            }
            path, send = (
                (f"/pools/{name}/vectors", stocked.post) if end else (f"/pools/{name}", stocked.put)
            )
            answer = send(
                path, params=params, content=write(at, part), headers={"content-type": media}
            )
            assert answer.status_code == 201, answer.text
            end += 4
            assert answer.json()["items"] == end
        found, count = stored(stocked, name)
        assert found.dtype == np.float32
        assert count == len(pieces)
        assert np.array_equal(found, rows[:end].astype(np.float32))


@pytest.mark.parametrize("offset", [0, 1, 29, 31, 60, 2**31 - 1])
def test_a_piece_that_begins_elsewhere_is_refused_with_where_the_pool_ends(
    stocked, refused, offset
):
    put(stocked)
    before = stocked.get("/pools/p").json()
    answer = add(stocked, offset, ROWS + 1)
    assert refused(answer, 409, "offset-mismatch", "offset", detail="30")["items"] == 30
    npy_answer = stocked.post(
        f"/pools/p/vectors?offset={offset}", content=as_npy(ROWS), headers={"content-type": NPY}
    )
    assert refused(npy_answer, 409, "offset-mismatch", "offset")["items"] == 30
    assert stocked.get("/pools/p").json() == before
    assert np.array_equal(stored(stocked)[0], ROWS)


# --- what is wrong with a piece -------------------------------------------------------------------

BAD = [
    ({"vectors": []}, 422, "empty-vectors", "vectors", None),
    ({"vectors": [[1.0] * 8, [1.0] * 7]}, 422, "ragged-rows", "vectors", [1]),
    ({"vectors": [[1.0] * 7] * 2}, 422, "dimension-mismatch", "vectors", None),
    ({"vectors": [[1.0] * 8, [1e31] * 8]}, 422, "value-out-of-range", "vectors", [1]),
    ({}, 422, "not-exactly-one", "vectors", None),
    ({"vectors": [[1.0] * 8], "inputs": ["a"]}, 422, "not-exactly-one", "vectors", None),
    ({"inputs": ["a"]}, 422, "encoder-needs-vectors", "inputs", None),
    ({"inputs": ["a"], "input_type": "both"}, 422, "invalid-request", "input_type", None),
    ({"vectors": [[1.0] * 8], "surplus": 1}, 422, "unknown-field", "surplus", None),
    ({"vectors": [[1.0] * 8] * 201}, 413, "pool-too-large", "vectors", None),
]


@pytest.mark.parametrize(
    ("body", "status", "code", "field", "rows"), BAD, ids=lambda value: str(value)[:40]
)
def test_a_bad_piece_is_refused_and_leaves_nothing(
    stocked, refused, body, status, code, field, rows
):
    refused(stocked.put("/pools/p", json={"encoder": "first", **body}), status, code, field, rows)
    refused(stocked.get("/pools/p"), 404, "pool-not-found", "name")
    before = put(stocked).json()
    refused(
        stocked.post("/pools/p/vectors", json={"offset": 30, **body}), status, code, field, rows
    )
    assert stocked.get("/pools/p").json() == before


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused_by_row_in_every_binary_form(stocked, refused, value):
    rows = ROWS[:4].copy()
    rows[2, 5] = rows[3, 0] = value
    put(stocked)
    for media, body in ((NPY, as_npy(rows)), (ARROW, as_arrow(rows))):
        headers = {"content-type": media}
        for answer in (
            stocked.put("/pools/q?encoder=first", content=body, headers=headers),
            stocked.post("/pools/p/vectors?offset=30", content=body, headers=headers),
        ):
            refused(answer, 422, "non-finite", "vectors", [2, 3])
    assert stocked.get("/pools/p").json()["items"] == 30


def test_items_without_a_direction_are_items(stocked):
    """A piece may be zeros, repetitions or one row. Only the whole pool is checked, on use."""
    assert put(stocked, [[0.0] * 8]).status_code == 201
    assert add(stocked, 1, [[0.0] * 8] * 5).status_code == 201


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("", "missing-field", "offset"),
        ("offset=x", "invalid-request", "offset"),
        ("offset=30.0", "invalid-request", "offset"),
        ("offset=-1", "invalid-request", "offset"),
        ("offset=2147483648", "invalid-request", "offset"),
        (f"offset={'9' * 5000}", "invalid-request", "offset"),
        ("offset=30&offset=30", "invalid-request", "offset"),
        ("offset=30&column=vector", "unknown-field", "column"),
        ("offset=30&encoder=first", "unknown-field", "encoder"),
        ("offset=30&vectors=1", "invalid-request", "vectors"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_query_is_refused_where_it_stands(stocked, refused, query, code, field):
    put(stocked)
    answer = stocked.post(
        f"/pools/p/vectors?{query}", content=as_npy(ROWS), headers={"content-type": NPY}
    )
    refused(answer, 422, code, field)
    assert stocked.get("/pools/p").json()["items"] == 30


def test_a_field_in_body_and_query_is_refused(stocked, refused):
    put(stocked)
    both = {"offset": 30, "vectors": ROWS.tolist()}
    refused(stocked.post("/pools/p/vectors?offset=30", json=both), 422, "invalid-request", "offset")
    both = {"encoder": "first", "vectors": ROWS.tolist()}
    refused(stocked.put("/pools/q?encoder=first", json=both), 422, "invalid-request", "encoder")


def test_the_encoder_of_a_pool_is_named_and_exists(stocked, refused):
    refused(
        stocked.put("/pools/p", content=as_npy(ROWS), headers={"content-type": NPY}),
        422,
        "missing-field",
        "encoder",
    )
    refused(
        put(stocked, encoder="unknown"), 404, "encoder-not-found", "encoder", detail="'unknown'"
    )
    refused(put(stocked, encoder="a b"), 422, "invalid-request", "encoder")
    refused(put(stocked, name="a b"), 422, "invalid-request", "name")
    refused(
        stocked.put("/pools/p?encoder=first", content=b"x", headers={"content-type": NPY}),
        400,
        "bad-npy",
        "vectors",
    )
    refused(
        stocked.put("/pools/p?encoder=first", content=b"x", headers={"content-type": ARROW}),
        400,
        "bad-arrow",
        "vectors",
    )
    refused(
        stocked.put("/pools/p", content=b"x", headers={"content-type": "text/csv"}),
        415,
        "unsupported-media-type",
    )
    assert stocked.get("/pools").json() == {"pools": []}


def test_a_pool_grows_up_to_its_limits_and_no_further(stocked, refused, monkeypatch):
    put(stocked, np.tile(ROWS, (6, 1)))
    assert refused(add(stocked, 180, ROWS[:21]), 413, "pool-too-large", "vectors")["limit"] == 200
    assert add(stocked, 180, ROWS[:20]).json()["items"] == 200
    assert refused(add(stocked, 200, ROWS[:1]), 413, "pool-too-large", "vectors")["limit"] == 200
    monkeypatch.setattr(pools, "MOST_POOL_PIECES", 3)
    put(stocked, ROWS[:1], name="q")
    for offset in (1, 2):
        assert add(stocked, offset, ROWS[:1], name="q").status_code == 201
    assert (
        refused(add(stocked, 3, ROWS[:1], name="q"), 413, "pool-too-large", "vectors")["limit"] == 3
    )


def test_a_piece_is_bound_by_what_one_request_may_hold_and_a_pool_is_not(serve, refused):
    service = serve(max_vectors=20, max_pool=60, max_body_bytes=2_000)
    service.post("/encoders", json={"name": "first", "dim": 8})
    refused(put(service, ROWS), 413, "body-too-large")
    headers = {"content-type": NPY}
    refused(
        service.put("/pools/p?encoder=first", content=as_npy(ROWS[:21]), headers=headers),
        413,
        "too-many-vectors",
        "vectors",
    )
    assert (
        service.put(
            "/pools/p?encoder=first", content=as_npy(ROWS[:20]), headers=headers
        ).status_code
        == 201
    )
    for offset in (20, 40):
        assert (
            service.post(
                f"/pools/p/vectors?offset={offset}", content=as_npy(ROWS[:20]), headers=headers
            ).status_code
            == 201
        )
    assert service.get("/pools/p").json()["items"] == 60


# --- whose it is, and what was done ---------------------------------------------------------------


def test_an_encoder_that_a_pool_uses_stays(stocked, refused):
    stocked.post("/encoders", json={"name": "third", "dim": 8})
    put(stocked, encoder="third")
    refused(stocked.delete("/encoders/third"), 409, "in-use", detail="pool 'p'")
    stocked.delete("/pools/p")
    assert stocked.delete("/encoders/third").status_code == 204


def test_every_write_is_in_the_audit_log(stocked):
    put(stocked)
    add(stocked, 30)
    add(stocked, 30)
    stocked.delete("/pools/p")
    rows = [
        (row["action"], row["name"])
        for row in stocked.get("/audit").json()["writes"]
        if row["resource"] == "pool"
    ]
    assert rows == [("delete", "p"), ("append", "p"), ("create", "p")]


def test_a_repeated_request_makes_a_pool_once_and_adds_a_piece_once(stocked, refused):
    headers = {"content-type": NPY}
    calls = [
        (stocked.put, "/pools/p?encoder=first", {**headers, "Idempotency-Key": "made"}),
        (stocked.post, "/pools/p/vectors?offset=30", {**headers, "Idempotency-Key": "more"}),
    ]
    for send, path, keyed in calls:
        first, second = (send(path, content=as_npy(ROWS), headers=keyed) for _ in range(2))
        assert (first.status_code, second.status_code) == (201, 201), second.text
        assert first.json() == second.json()
        refused(
            send(path, content=as_npy(ROWS + 1), headers=keyed),
            422,
            "idempotency-key-reused",
            "Idempotency-Key",
        )
    assert stored(stocked)[1] == 2
    stocked.delete("/pools/p")
    for send, path, keyed in calls:
        refused(send(path, content=as_npy(ROWS), headers=keyed), 409, "resource-gone")


# --- inputs ---------------------------------------------------------------------------------------


def test_inputs_are_the_vectors_that_they_make(encoding, fresh, refused):
    name, texts = fresh(), encoding.texts
    made = encoding.http.put(f"/pools/{name}", json={"encoder": "minilm", "inputs": texts[:10]})
    assert made.status_code == 201, made.text
    assert (made.json()["items"], made.json()["dim"]) == (10, 384)
    piece = {"offset": 10, "inputs": texts[10:], "input_type": "query"}
    assert encoding.http.post(f"/pools/{name}/vectors", json=piece).json()["items"] == len(texts)
    answer = encoding.http.post("/v1/embeddings", json={"model": "minilm", "input": texts}).json()
    expected = np.array([each["embedding"] for each in answer["data"]])
    np.testing.assert_allclose(stored(encoding, name)[0], expected, atol=1e-5)
    refused(
        encoding.http.post(f"/pools/{name}/vectors", json=piece), 409, "offset-mismatch", "offset"
    )
    long = {"offset": len(texts), "inputs": ["fine", "x" * 40_000]}
    refused(
        encoding.http.post(f"/pools/{name}/vectors", json=long),
        413,
        "input-too-long",
        "inputs",
        [1],
    )
    none = {"offset": len(texts), "inputs": []}
    refused(encoding.http.post(f"/pools/{name}/vectors", json=none), 422, "empty-vectors", "inputs")
    own = {"encoder": "own", "inputs": texts}
    refused(
        encoding.http.put(f"/pools/{fresh()}", json=own), 422, "encoder-needs-vectors", "inputs"
    )


def test_queries_are_encoded_as_queries(encoding, fresh):
    """`short` puts a prompt before queries, and none before documents."""
    names = {role: fresh() for role in ("query", "document")}
    for role, name in names.items():
        body = {"encoder": "short", "inputs": encoding.texts[:2], "input_type": role}
        assert encoding.http.put(f"/pools/{name}", json=body).status_code == 201
    asked, kept = (stored(encoding, name)[0] for name in names.values())
    assert np.abs(asked - kept).max() > 0.01


def test_images_come_as_files(encoding, fresh):
    image = pytest.importorskip("PIL.Image")
    name, files = fresh(), []
    for seed in range(3):
        file = io.BytesIO()
        image.fromarray(
            np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        ).save(file, "PNG")
        files.append(("inputs", (f"{seed}.png", file.getvalue())))
    for send, path, about, part in (
        (encoding.http.put, f"/pools/{name}", {"encoder": "eye"}, files[:2]),
        (encoding.http.post, f"/pools/{name}/vectors", {"offset": 2}, files[2:]),
    ):
        answer = send(path, files=[("request", ("", json.dumps(about), JSON)), *part])
        assert answer.status_code == 201, answer.text
    assert stored(encoding, name)[0].shape == (3, answer.json()["dim"])


def test_inputs_of_a_model_whose_files_changed_are_refused(encoding, fresh, refused, monkeypatch):
    monkeypatch.setattr(encoding_service, "RECHECK_MODEL_S", 0.0)
    folder, encoder, name = encoding.models / fresh(), fresh(), fresh()
    shutil.copytree(encoding.models / "toy", folder)
    body = {"name": encoder, "kind": "sentence-transformers", "model": folder.name}
    assert encoding.http.post("/encoders", json=body).status_code == 201
    assert (
        encoding.http.put(
            f"/pools/{name}", json={"encoder": encoder, "inputs": ["a", "b"]}
        ).status_code
        == 201
    )
    config = folder / "config_sentence_transformers.json"
    config.write_text(config.read_text() + "\n")
    other = {"name": fresh(), "kind": "sentence-transformers", "model": folder.name}
    assert encoding.http.post("/encoders", json=other).status_code == 201  # loads the files again
    piece = {"offset": 2, "inputs": ["c"]}
    refused(
        encoding.http.post(f"/pools/{name}/vectors", json=piece), 409, "encoder-changed", "encoder"
    )
    refused(
        encoding.http.put(f"/pools/{fresh()}", json={"encoder": encoder, "inputs": ["c"]}),
        409,
        "encoder-changed",
        "encoder",
    )
    assert encoding.http.get(f"/pools/{name}").json()["items"] == 2


# --- bootstraps -----------------------------------------------------------------------------------


@pytest.fixture
def ask(stocked, embeddings):
    """POST /bootstrap of the pools `source` and `target`; a value of ... leaves a field out."""
    put(stocked, embeddings["first"][:25], name="source")
    add(stocked, 25, embeddings["first"][25:], name="source")
    put(stocked, embeddings["second"], name="target", encoder="second")

    def post(**more):
        body = {
            "name": "found",
            "source": "first",
            "target": "second",
            "source_pool": "source",
            "target_pool": "target",
            "seeds": [[i, i] for i in range(12)],
            "size": 20,
            # Self-learning needs more than 40 items.
            "method": "soft-plan",
            "min_right": 0,
            "options": {"steps": 20},
            **more,
        }
        return stocked.post(
            "/bootstrap", json={key: value for key, value in body.items() if value is not ...}
        )

    return post


def test_a_named_pool_finds_what_its_vectors_find(ask, stocked, finished, embeddings, packed):
    inline = {
        "source_pool": embeddings["first"].tolist(),
        "target_pool": packed(embeddings["second"], "float64"),
    }
    results = []
    for name, change in (
        ("both", {}),
        ("one", {"target_pool": inline["target_pool"]}),
        ("none", inline),
    ):
        answer = ask(name=name, **change)
        assert answer.status_code == 202, answer.text
        job = finished(stocked, answer.json()["id"])
        assert job["state"] == "succeeded", job
        pairs = stocked.get(f"/anchor-sets/{name}/pairs").json()
        results.append((pairs, stocked.get(f"/anchor-sets/{name}").json()["spaces"]))
    assert results[0] == results[1] == results[2]
    assert len(results[0][0]["pairs"]) == stocked.get("/anchor-sets/both").json()["size"]


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"source_pool": "nothing"}, 404, "pool-not-found", "source_pool"),
        ({"target_pool": "nothing"}, 404, "pool-not-found", "target_pool"),
        ({"source_pool": "target"}, 409, "pool-of-another-encoder", "source_pool"),
        ({"target_pool": "source"}, 409, "pool-of-another-encoder", "target_pool"),
        ({"source_pool": "a b"}, 422, "invalid-request", "source_pool"),
        ({"source_pool": "source\n"}, 422, "invalid-request", "source_pool"),
        ({"source_pool": ...}, 422, "not-exactly-one", "source_pool"),
        ({"target_pool": None}, 422, "not-exactly-one", "target_pool"),
        ({"source_inputs": ["a", "b"]}, 422, "not-exactly-one", "source_pool"),
        ({"target_inputs": []}, 422, "not-exactly-one", "target_pool"),
        (
            {"source_pool": ..., "source_inputs": ["a"] * 40},
            422,
            "encoder-needs-vectors",
            "source_inputs",
        ),
        (
            {"target_pool": ..., "target_inputs": ["a", 7]},
            422,
            "invalid-request",
            "target_inputs.1",
        ),
        ({"input_type": "both"}, 422, "invalid-request", "input_type"),
        ({"seeds": [[i, i] for i in range(11)] + [[40, 12]]}, 422, "invalid-seeds", "seeds"),
        ({"size": 41}, 422, "invalid-seeds", "size"),
        ({"source_pool": "flat"}, 422, "degenerate-anchors", "source_pool"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_wrong_with_a_side_is_said_by_its_field(
    ask, stocked, refused, change, status, code, field
):
    put(stocked, [[1.0] * 8] * 30, name="flat")
    add(stocked, 30, [[1.0] * 8] * 10, name="flat")
    rows = [11] if "seeds" in change else None
    refused(ask(**change), status, code, field, rows)
    assert stocked.get("/jobs").json() == {"jobs": []}


def test_a_pool_whose_pieces_differ_has_directions(ask, stocked):
    put(stocked, [[1.0] * 8] * 30, name="steps")
    add(stocked, 30, [[2.0, *[1.0] * 7]] * 10, name="steps")
    job = ask(source_pool="steps")
    assert job.status_code == 202, job.text
    stocked.post(f"/jobs/{job.json()['id']}/cancel")


def test_a_bootstrap_encodes_inputs_as_a_pool_does(encoding, fresh, finished, refused):
    def grow(**sides):
        how = {"method": "paper", "min_right": 0, "seeds": [[i, i] for i in range(10)], "size": 20}
        body = {"name": fresh(), "source": "minilm", "target": "own", **how, **sides}
        answer = encoding.http.post("/bootstrap", json=body)
        assert answer.status_code == 202, answer.text
        job = finished(encoding.http, answer.json()["id"])
        assert job["state"] == "succeeded", job
        return encoding.http.get(f"/anchor-sets/{body['name']}/pairs").json()

    name, own = fresh(), encoding.own.tolist()
    assert (
        encoding.http.put(
            f"/pools/{name}", json={"encoder": "minilm", "inputs": encoding.texts}
        ).status_code
        == 201
    )
    named = grow(source_pool=name, target_pool=own)
    assert named["pairs"][:10] == [[i, i] for i in range(10)]
    assert grow(source_inputs=encoding.texts, target_pool=own) == named
    wrong = {
        "name": fresh(),
        "source": "minilm",
        "target": "own",
        "seeds": [[0, 0], [1, 1]],
        "size": 2,
        "target_pool": own,
    }
    wrong |= {"method": "paper"}
    answer = encoding.http.post("/bootstrap", json={**wrong, "source_inputs": ["same"] * 24})
    refused(answer, 422, "degenerate-anchors", "source_inputs")
    answer = encoding.http.post(
        "/bootstrap", json={**wrong, "source_inputs": ["fine", "x" * 40_000]}
    )
    refused(answer, 413, "input-too-long", "source_inputs", [1])
    answer = encoding.http.post("/bootstrap", json={**wrong, "source_inputs": ["a"] * 3_001})
    refused(answer, 413, "too-many-inputs", "source_inputs")


# --- the pairs of a grown set ---------------------------------------------------------------------


@pytest.fixture
def grown(stocked, embeddings):
    """A service with the bootstrapped set `grown` of 40 anchors."""
    services = stocked.app.state.services
    pairs = torch.stack([torch.arange(40) * 3, torch.arange(40).flip(0)], dim=1)
    confidence = torch.linspace(0, 1, 40)
    confidence[5] = torch.nan
    vectors = {name: torch.tensor(rows) for name, rows in embeddings.items()}
    row = anchor_sets.build_anchor_set(
        services,
        "default",
        name="grown",
        embeddings=vectors,
        pairs={"pairs": pairs, "confidence": confidence},
    )
    with services.db.transaction() as session:
        anchor_sets.add_anchor_set(session, RequestContext("default"), row)
    return stocked, pairs.tolist(), [None if sure != sure else sure for sure in confidence.tolist()]


def test_the_pairs_of_a_grown_set_come_in_pages(grown):
    client, pairs, confidence = grown
    whole = client.get("/anchor-sets/grown/pairs").json()
    assert whole["pairs"] == pairs
    assert whole["confidence"][5] is None
    assert np.allclose(whole["confidence"][6:], confidence[6:])
    found: list = []
    while page := client.get(
        "/anchor-sets/grown/pairs", params={"after": len(found) - 1, "limit": 7}
    ).json()["pairs"]:
        assert len(page) <= 7
        found += page
    assert found == pairs
    for after in (39, 40, 2**62, 10**30):
        answer = client.get("/anchor-sets/grown/pairs", params={"after": after})
        assert answer.json() == {"pairs": [], "confidence": []}


def test_the_pairs_come_in_arrow_too(grown):
    client, pairs, _ = grown
    answer = client.get(
        "/anchor-sets/grown/pairs", params={"after": 3, "limit": 5}, headers={"accept": ARROW}
    )
    assert (answer.status_code, answer.headers["content-type"]) == (200, ARROW)
    table = ipc.open_stream(answer.content).read_all()
    table.validate(full=True)
    assert table.schema.names == ["source_row", "target_row", "confidence"]
    assert table.schema.types == [pa.int64(), pa.int64(), pa.float32()]
    assert list(
        zip(table["source_row"].to_pylist(), table["target_row"].to_pylist(), strict=True)
    ) == [tuple(pair) for pair in pairs[4:9]]
    assert table["confidence"].null_count == 1
    assert table["confidence"][1].as_py() is None
    empty = client.get("/anchor-sets/grown/pairs", params={"after": 39}, headers={"accept": ARROW})
    assert ipc.open_stream(empty.content).read_all().num_rows == 0


def test_pairs_that_nobody_can_be_told_are_refused(grown, refused):
    client, _, _ = grown
    refused(
        client.get("/anchor-sets/items/pairs"), 404, "pairs-not-found", "name", detail="'items'"
    )
    refused(client.get("/anchor-sets/nothing/pairs"), 404, "anchor-set-not-found", "name")
    refused(
        client.get("/anchor-sets/grown/pairs", headers={"accept": NPY}),
        406,
        "not-acceptable",
        "Accept",
    )
    for query in ({"limit": 0}, {"limit": 10_001}, {"after": -2}, {"after": "x"}):
        refused(
            client.get("/anchor-sets/grown/pairs", params=query),
            422,
            "invalid-request",
            next(iter(query)),
        )


# --- memory, and the document ---------------------------------------------------------------------

LOADING = """
import sys
from pathlib import Path
from app.services.anchors import pools
from app.settings import Settings
from app.wiring import make_services

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

services = make_services(Settings(data_dir=sys.argv[1]))
pools.load_items(services, sys.argv[2:3])  # what the first use of every library brings
before = peak()
whole = pools.load_items(services, sys.argv[2:])
print(peak() - before, whole.nbytes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_loading_takes_memory_for_the_items_and_one_piece(tmp_path):
    blobs = BlobStore(tmp_path / "blobs")
    draw = torch.Generator().manual_seed(0)
    digests = [
        blobs.put({pools.POOL_TENSOR: torch.randn(4_096, 1_024, generator=draw)}) for _ in range(16)
    ]
    done = subprocess.run(
        [sys.executable, "-c", LOADING, tmp_path, *digests],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    grown, whole = map(int, done.stdout.split())
    assert whole == 16 * 4_096 * 1_024 * 4
    assert grown < whole + whole // 16 + 2**22, f"{grown / 2**20:.0f} MiB for {whole / 2**20:.0f}"
