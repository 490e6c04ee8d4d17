"""Every form of bodies and vectors, good or bad. /relative stands for all routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from app.errors import AnchorageError
from app.http import fields
from app.http.bodies import watch_departure

JSON = {"content-type": "application/json"}
ROW = [0.5, 1.5, -0.25, 2.0, 0.125, -1.0, 0.75, 3.0]


def ask(client, vectors, **more):
    return client.post(
        "/relative", json={"encoder": "first", "anchor_set": "items", "vectors": vectors, **more}
    )


# --- good -----------------------------------------------------------------------------------------


def test_float_lists_and_base64_answer_the_same_numbers_bit_for_bit(stocked, embeddings, unpacked):
    vectors = embeddings["first"].tolist()
    listed = ask(stocked, vectors).json()["vectors"]
    packed = unpacked(ask(stocked, vectors, encoding="base64").json()["vectors"])
    assert (packed.dtype, packed.shape) == (np.float32, (40, 40))
    assert np.array_equal(np.array(listed, dtype=np.float32), packed)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_base64_of_any_dtype_is_its_numbers(packed, dtype):
    array = np.random.default_rng(0).normal(size=(5, 8)).astype(dtype)
    assert np.array_equal(fields.parse_matrix(packed(array, dtype), "vectors").numpy(), array)


# --- vectors that are no vectors ------------------------------------------------------------------


LISTS = [
    ([], "empty-vectors", None),
    ([ROW, ROW[:7], ROW], "ragged-rows", [1]),
    (ROW, "bad-shape", list(range(8))),
    ([ROW, 1.0, ROW], "bad-shape", [1]),
    ([ROW, [True, *ROW[1:]], ["1", *ROW[1:]], [[], *ROW[1:]]], "bad-dtype", [1, 2, 3]),
    # NumPy would make each cell as wide as the longest text: gigabytes from half a megabyte
    ([ROW] * 900 + [["a" * 500_000, *ROW[1:]]], "bad-dtype", [900]),
    ({"dtype": "float32"}, "bad-shape", None),
]
BASE64 = [
    ({"base64": "AAAA"}, "bad-base64", "vectors.base64"),
    ({"base64": "not base64!"}, "bad-base64", "vectors.base64"),
    ({"base64": None}, "bad-base64", "vectors.base64"),
    ({"dtype": "int8"}, "bad-dtype", "vectors.dtype"),
    ({"shape": [True, 8]}, "bad-shape", "vectors.shape"),
    ({"shape": [-1, -8]}, "bad-shape", "vectors.shape"),
    ({"shape": [2**62, 2**62]}, "bad-base64", "vectors.base64"),
    ({"shape": [0, 8], "base64": ""}, "empty-vectors", "vectors"),
    ({"order": "F"}, "bad-shape", "vectors"),
]


def test_what_is_no_vectors_is_refused_at_its_rows_or_its_member(packed):
    wrong = [(vectors, code, "vectors", rows) for vectors, code, rows in LISTS]
    wrong += [({**packed([ROW]), **change}, *error, None) for change, *error in BASE64]
    for vectors, code, field, rows in wrong:
        with pytest.raises(AnchorageError) as refused:
            fields.parse_matrix(vectors, "vectors")
        error = refused.value
        found = (error.code, error.field, list(error.rows) or None)
        assert found == (code, field, rows), str(vectors)[:80]


def test_wrong_vectors_are_problems_of_the_answer(stocked, refused, packed):
    rows = [ROW] * 5 + [[*ROW[:7], None]] * 30  # twenty of them are named
    problem = refused(ask(stocked, rows), 422, "bad-dtype", "vectors", list(range(5, 25)))
    assert problem["row_count"] == 30
    change = {"base64": "not base64!"}
    refused(ask(stocked, {**packed([ROW]), **change}), 422, "bad-base64", "vectors.base64")
    refused(ask(stocked, {**packed([ROW]), "shape": [8, 1]}), 422, "dimension-mismatch", "vectors")
    array = np.array([ROW, ROW])
    array[1, 3] = np.nan
    refused(ask(stocked, packed(array)), 422, "non-finite", "vectors", [1])


# --- bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"name": "x", "dim": 2,}',
        b'{"name": "x"} {"name": "y"}',
        b"name=x",
        b'{"name": "\xff"}',
        b'{"na\\ud800me": "x"}',
        *(b'{"name": "x", "dim": %b}' % each for each in (b"NaN", b"-Infinity", b"1e999")),
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_not_json_is_a_problem_of_its_own(client, refused, body):
    refused(client.post("/encoders", content=body, headers=JSON), 400, "malformed-json")
    assert client.get("/encoders").json() == {"encoders": []}


@pytest.mark.parametrize("media", ["text/plain", "application/x-npy", "", None])
def test_another_content_type_or_none_is_refused(client, refused, media):
    headers = {} if media is None else {"content-type": media}
    answer = client.post("/encoders", content=b'{"name": "x", "dim": 2}', headers=headers)
    refused(answer, 415, "unsupported-media-type", detail="application/json")
    assert "npy" in client.post("/translate", content=b"x", headers=headers).json()["detail"]
    refused(client.get("/encoders/x"), 404, "encoder-not-found", "name")


@pytest.mark.parametrize("path", ["/translate", "/v1/embeddings"])
@pytest.mark.parametrize("where", ["", "options"])
def test_a_field_whose_name_is_megabytes_long_is_not_echoed(client, path, where):
    long = {"k" * 2**20: 1}
    answer = client.post(path, json={where: long} if where else long)
    assert 400 <= answer.status_code < 500
    assert len(answer.content) < 2_000


# --- limits ---------------------------------------------------------------------------------------


def send_pieces(client: TestClient, headers: dict[str, str], piece: int) -> tuple[Any, int]:
    """The answer of POST /encoders to an endless body, and how many pieces the service read."""
    taken = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b" " * piece

    async def send() -> Any:
        transport = httpx2.ASGITransport(client.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return await http.post("/encoders", content=pieces(), headers={**JSON, **headers})

    return client.portal.call(send), taken


LIMIT = 4 * 1024 * 1024


@pytest.mark.parametrize(("size", "pieces"), [(LIMIT + 1, 5), (2 * LIMIT + 1, 0)])
def test_a_body_declared_above_the_limit_is_dropped_and_above_twice_unread(
    client, refused, size, pieces
):
    body = b'{"name": "x", "dim": 2}'.ljust(LIMIT)  # exactly the limit
    assert client.post("/encoders", content=body, headers=JSON).status_code == 201
    answer, taken = send_pieces(client, {"content-length": str(size)}, LIMIT // 2)
    assert refused(answer, 413, "body-too-large")["limit"] == LIMIT
    assert taken == pieces


@pytest.mark.parametrize(
    "length",
    [{"transfer-encoding": "chunked"}, *({"content-length": lie} for lie in ("1", "-1", "x", ""))],
)
def test_a_body_of_no_true_length_is_read_no_further_than_twice_the_limit(client, refused, length):
    answer, taken = send_pieces(client, length, 1024 * 1024)
    refused(answer, 413, "body-too-large")
    assert taken == 9  # MiB: the first beyond twice the limit ends it


def test_too_many_vectors_are_refused_and_the_limit_named(stocked, refused, packed):
    rows = np.ones((2001, 8))
    assert ask(stocked, packed(rows[1:], "float16"), encoding="base64").status_code == 200
    problem = refused(ask(stocked, packed(rows, "float16")), 413, "too-many-vectors", "vectors")
    assert problem["limit"] == 2000


def test_who_begins_to_listen_before_or_after_the_client_has_left_hears_of_it():
    """A part of the inputs can be queued after the client has left."""
    heard = []

    async def receive():
        return {"type": "http.disconnect"}

    async def serve():
        request = Request({"type": "http", "headers": []}, receive)
        with watch_departure(request):
            listen = request.scope["state"]["on_departure"]
            listen(lambda: heard.append("before"))
            await asyncio.sleep(0.01)
            assert heard == ["before"]
            await asyncio.to_thread(listen, lambda: heard.append("after"))
            await asyncio.sleep(0.01)
        assert "after" in heard

    asyncio.run(serve())
