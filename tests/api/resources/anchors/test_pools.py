"""/pools, and bootstraps that name one."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
import torch

from app.api.codecs import media_types
from app.services.anchors import anchor_sets, pools
from app.services.request_context import RequestContext
from app.storage.blobs import BlobStore
from app.storage.queries import resources

JSON, NPY = "application/json", media_types.NPY
ROWS = np.random.default_rng(11).normal(size=(30, 8)).astype(np.float32)


def as_npy(rows):
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue()


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


@pytest.mark.parametrize("offset", [29, 31])
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


def test_a_pool_grows_up_to_its_limits_and_no_further(stocked, refused, monkeypatch):
    put(stocked, np.tile(ROWS, (6, 1)))
    assert refused(add(stocked, 180, ROWS[:21]), 413, "pool-too-large", "vectors")["limit"] == 200
    assert add(stocked, 180, ROWS[:20]).json()["items"] == 200
    assert refused(add(stocked, 200, ROWS[:1]), 413, "pool-too-large", "vectors")["limit"] == 200
    monkeypatch.setattr(pools, "MAX_POOL_PIECES", 3)
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


# --- bootstraps -----------------------------------------------------------------------------------


@pytest.fixture
def ask(stocked, embeddings):
    """POST /bootstrap of the pools `source` and `target`; a value of ... leaves a field out."""
    draw = np.random.default_rng(12)
    put(stocked, draw.normal(size=(25, 8)), name="source")
    add(stocked, 25, draw.normal(size=(95, 8)), name="source")
    put(stocked, draw.normal(size=(120, 6)), name="target", encoder="second")

    def post(**more):
        body = {
            "name": "found",
            "source": "first",
            "target": "second",
            "source_pool": "source",
            "target_pool": "target",
            "seeds": [[i, i] for i in range(12)],
            "size": 20,
            "min_precision": 0,
            **more,
        }
        return stocked.post(
            "/bootstrap", json={key: value for key, value in body.items() if value is not ...}
        )

    return post


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"source_pool": "nothing"}, 404, "pool-not-found", "source_pool"),
        ({"source_pool": "target"}, 409, "pool-of-another-encoder", "source_pool"),
        ({"source_pool": ...}, 422, "not-exactly-one", "source_pool"),
        ({"source_pool": "flat"}, 422, "degenerate-anchors", "source_pool"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_wrong_with_a_side_is_said_by_its_field(
    ask, stocked, refused, change, status, code, field
):
    put(stocked, [[1.0] * 8] * 30, name="flat")
    add(stocked, 30, [[1.0] * 8] * 90, name="flat")
    refused(ask(**change), status, code, field)
    assert stocked.get("/jobs").json() == {"jobs": []}


def test_a_pool_whose_pieces_differ_has_directions(ask, stocked):
    put(stocked, [[1.0] * 8] * 30, name="steps")
    add(stocked, 30, [[2.0, *[1.0] * 7]] * 90, name="steps")
    job = ask(source_pool="steps")
    assert job.status_code == 202, job.text
    stocked.post(f"/jobs/{job.json()['id']}/cancel")


def test_a_bootstrap_encodes_inputs_as_a_pool_does(encoding, fresh, finished, refused):
    def grow(**sides):
        how = {
            "min_precision": 0,
            "seeds": [[i, i] for i in range(10)],
            "size": 20,
        }
        body = {"name": fresh(), "source": "minilm", "target": "own", **how, **sides}
        answer = encoding.http.post("/bootstrap", json=body)
        assert answer.status_code == 202, answer.text
        job = finished(encoding.http, answer.json()["id"])
        assert job["state"] == "succeeded", job
        return encoding.http.get(f"/anchor-sets/{body['name']}/pairs").json()

    texts = [f"{text} {number}" for number in range(100) for text in encoding.texts[:1]]
    name, own = fresh(), np.random.default_rng(3).normal(size=(len(texts), 5)).tolist()
    assert (
        encoding.http.put(f"/pools/{name}", json={"encoder": "minilm", "inputs": texts}).status_code
        == 201
    )
    named = grow(source_pool=name, target_pool=own)
    assert named["pairs"][:10] == [[i, i] for i in range(10)]
    assert grow(source_inputs=texts, target_pool=own) == named
    wrong = {
        "name": fresh(),
        "source": "minilm",
        "target": "own",
        "seeds": [[0, 0], [1, 1]],
        "size": 2,
        "target_pool": own,
    }
    answer = encoding.http.post("/bootstrap", json={**wrong, "source_inputs": ["same"] * 100})
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


def test_a_page_of_pairs(grown):
    client, pairs, confidence = grown
    answer = client.get("/anchor-sets/grown/pairs", params={"after": 3, "limit": 5}).json()
    assert (answer["pairs"], answer["confidence"]) == (pairs[4:9], pytest.approx(confidence[4:9]))
    assert client.get("/anchor-sets/grown/pairs", params={"after": 39}).json()["pairs"] == []


def test_pairs_that_nobody_can_be_told_are_refused(grown, refused):
    client, _, _ = grown
    refused(
        client.get("/anchor-sets/items/pairs"), 404, "pairs-not-found", "name", detail="'items'"
    )
    refused(client.get("/anchor-sets/nothing/pairs"), 404, "anchor-set-not-found", "name")


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


@pytest.mark.long
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
