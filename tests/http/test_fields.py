"""Every form of bodies and vectors, good or bad. /relative stands for all routes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from app.context import Limits
from app.errors import AnchorageError
from app.http import fields
from app.http.bodies import watch_departure
from app.main import create_app
from app.settings import Settings

JSON = {"content-type": "application/json"}
ROW = [0.5, 1.5, -0.25, 2.0, 0.125, -1.0, 0.75, 3.0]


def ask(client, vectors, **more):
    return client.post(
        "/relative", json={"encoder": "first", "anchor_set": "items", "vectors": vectors, **more}
    )


def ask_raw(client, vectors: str):
    body = '{"encoder": "first", "anchor_set": "items", "vectors": ' + vectors + "}"
    return client.post("/relative", content=body, headers=JSON)


# --- good -----------------------------------------------------------------------------------------


def test_float_lists_and_base64_answer_the_same_numbers_bit_for_bit(stocked, embeddings, unpacked):
    vectors = embeddings["first"].tolist()
    listed = ask(stocked, vectors).json()["vectors"]
    packed = unpacked(ask(stocked, vectors, encoding="base64").json()["vectors"])
    assert packed.dtype == np.float32
    assert packed.shape == (40, 40)
    assert np.array_equal(np.array(listed, dtype=np.float32), packed)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_base64_of_any_dtype_means_the_same_as_the_list_of_its_numbers(
    stocked, packed, embeddings, dtype
):
    array = embeddings["first"][:5].astype(dtype)
    from_base64 = ask(stocked, packed(array, dtype))
    assert from_base64.status_code == 200, from_base64.text
    assert from_base64.json() == ask(stocked, array.astype("float64").tolist()).json()


# --- vectors that are no vectors ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vectors", "code", "rows"),
    [
        ([], "empty-vectors", None),
        ([ROW, ROW[:7], ROW], "ragged-rows", [1]),
        (ROW, "bad-shape", list(range(8))),
        ([ROW, 1.0, ROW], "bad-shape", [1]),
        ([[True, *ROW[1:]]], "bad-dtype", [0]),
        ([ROW, ["1.5", *ROW[1:]]], "bad-dtype", [1]),
        ([ROW, ROW, [None, *ROW[1:]]], "bad-dtype", [2]),
        ([ROW, [[1.0], *ROW[1:]]], "bad-dtype", [1]),
        ("a string", "bad-shape", None),
        ({"dtype": "float32"}, "bad-shape", None),
    ],
)
def test_lists_that_are_no_vectors_are_refused_by_row(vectors, code, rows):
    with pytest.raises(AnchorageError) as refused:
        fields.parse_matrix(vectors, "vectors")
    error = refused.value
    assert (error.code, error.field, list(error.rows) or None) == (code, "vectors", rows)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 400])
def test_numbers_that_json_does_not_have_are_refused_where_they_stand(stocked, refused, literal):
    refused(
        ask_raw(stocked, f"[[1, 2, 3, {literal}, 5, 6, 7, 8]]"),
        400,
        "malformed-json",
        detail="char ",
    )


def test_only_the_first_twenty_rows_at_fault_are_named(stocked, refused):
    problem = refused(
        ask(stocked, [ROW] * 5 + [[*ROW[:7], None]] * 30),
        422,
        "bad-dtype",
        "vectors",
        list(range(5, 25)),
    )
    assert problem["row_count"] == 30


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"base64": "AAAA"}, "bad-base64", "vectors.base64"),
        ({"base64": ""}, "bad-base64", "vectors.base64"),
        ({"base64": "not base64!"}, "bad-base64", "vectors.base64"),
        ({"base64": "AAAA\nAAAA"}, "bad-base64", "vectors.base64"),
        ({"base64": None}, "bad-base64", "vectors.base64"),
        ({"dtype": "float16"}, "bad-base64", "vectors.base64"),
        ({"dtype": "int8"}, "bad-dtype", "vectors.dtype"),
        ({"dtype": ["float32"]}, "bad-dtype", "vectors.dtype"),
        ({"shape": [1, 8.0]}, "bad-shape", "vectors.shape"),
        ({"shape": [True, 8]}, "bad-shape", "vectors.shape"),
        ({"shape": [-1, -8]}, "bad-shape", "vectors.shape"),
        ({"shape": [2, 8]}, "bad-base64", "vectors.base64"),
        ({"shape": [2**62, 2**62]}, "bad-base64", "vectors.base64"),
        ({"shape": [0, 8], "base64": ""}, "empty-vectors", "vectors"),
        ({"order": "F"}, "bad-shape", "vectors"),
    ],
)
def test_base64_that_is_no_vectors_is_refused_at_its_member(packed, change, code, field):
    assert fields.parse_matrix(packed([ROW]), "vectors").shape == (1, 8)
    with pytest.raises(AnchorageError) as refused:
        fields.parse_matrix({**packed([ROW]), **change}, "vectors")
    assert (refused.value.code, refused.value.field) == (code, field)


def test_wrong_vectors_are_problems_of_the_answer(stocked, refused, packed):
    refused(ask(stocked, [ROW, ROW[:7]]), 422, "ragged-rows", "vectors", [1])
    change = {"base64": "not base64!"}
    refused(ask(stocked, {**packed([ROW]), **change}), 422, "bad-base64", "vectors.base64")
    refused(ask(stocked, {**packed([ROW]), "shape": [8, 1]}), 422, "dimension-mismatch", "vectors")


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
        b'{"name": "x", "dim": nan}',
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_not_json_is_a_problem_of_its_own(client, refused, body):
    refused(client.post("/encoders", content=body, headers=JSON), 400, "malformed-json")
    assert client.get("/encoders").json() == {"encoders": []}


@pytest.mark.parametrize("body", [b"[]", b"7"])
def test_json_that_is_no_object_is_refused(client, refused, body):
    refused(client.post("/encoders", content=body, headers=JSON), 422, "invalid-request", "body")


@pytest.mark.parametrize(
    "media",
    [
        "text/plain",
        "application/x-npy",
        "",
    ],
)
def test_another_content_type_is_refused(client, refused, media):
    answer = client.post(
        "/encoders", content=b'{"name": "x", "dim": 2}', headers={"content-type": media}
    )
    refused(answer, 415, "unsupported-media-type", detail="application/json")
    refused(client.get("/encoders/x"), 404, "encoder-not-found", "name")


def test_no_content_type_is_refused(client, refused):
    answer = client.post("/encoders", content=b'{"name": "x", "dim": 2}')
    refused(answer, 415, "unsupported-media-type", detail="no Content-Type")


@pytest.mark.parametrize("path", ["/translate", "/encoders", "/anchor-sets", "/v1/embeddings"])
@pytest.mark.parametrize("where", ["", "options", "embeddings"])
def test_a_field_whose_name_is_megabytes_long_is_not_echoed(client, path, where):
    long = {"k" * 2**20: 1}
    answer = client.post(path, json={where: long} if where else long)
    assert 400 <= answer.status_code < 500
    assert len(answer.content) < 2_000


# --- limits ---------------------------------------------------------------------------------------


def call(
    client, headers: dict[str, str], chunks: list[bytes]
) -> tuple[int, dict[str, str], bytes, int]:
    """One ASGI call of POST /encoders; the last number is how many chunks the service read."""
    taken = 0
    sent = []

    async def receive():
        nonlocal taken
        taken += 1
        more = taken < len(chunks)
        return {"type": "http.request", "body": chunks[taken - 1], "more_body": more}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/encoders",
        "raw_path": b"/encoders",
        "query_string": b"",
        "root_path": "",
        "headers": [
            (name.encode(), value.encode())
            for name, value in {"host": "127.0.0.1", **headers}.items()
        ],
        "client": ("test", 1),
        "server": ("test", 80),
    }
    client.portal.call(client.app, scope, receive, send)
    head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return (
        sent[0]["status"],
        head,
        b"".join(message.get("body", b"") for message in sent[1:]),
        taken,
    )


LIMIT = 4 * 1024 * 1024


@pytest.mark.parametrize(("size", "pieces"), [(LIMIT + 1, 1), (2 * LIMIT + 1, 0)])
def test_a_body_declared_above_the_limit_is_dropped_and_above_twice_unread(client, size, pieces):
    status, head, body, taken = call(client, {**JSON, "content-length": str(size)}, [b" " * size])
    assert (status, taken) == (413, pieces)
    assert head["content-type"] == "application/problem+json"
    assert b'"code":"body-too-large"' in body
    assert f'"limit":{LIMIT}'.encode() in body


@pytest.mark.parametrize(
    "length",
    [{"transfer-encoding": "chunked"}, *({"content-length": lie} for lie in ("1", "-1", "x", ""))],
)
def test_a_body_of_no_true_length_is_read_no_further_than_twice_the_limit(client, length):
    status, head, body, taken = call(client, {**JSON, **length}, [b" " * (1024 * 1024)] * 100)
    assert (status, taken) == (413, 9)  # MiB: the first beyond twice the limit ends it
    assert head["content-type"] == "application/problem+json"
    assert b'"code":"body-too-large"' in body


def test_a_body_of_exactly_the_limit_is_read(client):
    body = b'{"name": "x", "dim": 2}'.ljust(LIMIT)
    assert client.post("/encoders", content=body, headers=JSON).status_code == 201


def test_too_many_vectors_are_refused_and_the_limit_named(stocked, refused, packed):
    assert ask(stocked, packed(np.ones((2000, 8)), "float16"), encoding="base64").status_code == 200
    problem = refused(
        ask(stocked, packed(np.ones((2001, 8)), "float16")),
        413,
        "too-many-vectors",
        "vectors",
        detail="2001",
    )
    assert problem["limit"] == 2000


def test_long_text_among_numbers_is_refused_without_a_table_as_wide(stocked, refused):
    """NumPy would make each cell as wide as the longest text: gigabytes from half a megabyte."""
    vectors = [[0.5] * 8] * 900 + [["a" * 500_000] + [0.5] * 7]
    body = {"encoder": "first", "anchor_set": "items", "vectors": vectors}
    refused(stocked.post("/relative", json=body), 422, "bad-dtype", "vectors", [900])


def test_an_answer_of_too_many_numbers_is_refused_naming_how_many_vectors_fit(tmp_path, refused):
    app = create_app(Settings(data_dir=tmp_path))
    app.state.services = replace(app.state.services, limits=Limits(numbers=100))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for name, dim in (("small", 2), ("wide", 60)):
            client.post("/encoders", json={"name": name, "dim": dim})
        anchors = {"small": [[0, 1], [1, 0]], "wide": [[0] * 60, [1] * 60]}
        assert (
            client.post("/anchor-sets", json={"name": "s", "embeddings": anchors}).status_code
            == 201
        )
        body = {"source": "small", "target": "wide", "anchor_set": "s", "vectors": [[0, 1], [1, 0]]}
        problem = refused(client.post("/translate", json=body), 413, "too-many-vectors", "vectors")
        assert problem["limit"] == 1
        classes = [str(label) for label in range(60)]
        head = {"name": "many", "encoder": "small", "classes": classes, "weight": [[0, 1]] * 60}
        assert client.post("/heads", json=head).status_code == 201
        ask = {"encoder": "small", "head": "many", "vectors": [[0, 1], [1, 0]]}
        assert (
            refused(client.post("/stitch", json=ask), 413, "too-many-vectors", "vectors")["limit"]
            == 1
        )


@pytest.mark.parametrize("early", [True, False])
def test_who_begins_to_listen_after_the_client_has_left_hears_of_it(early):
    """A part of the inputs can be queued after the client has left."""
    heard = []

    async def receive():
        return {"type": "http.disconnect"}

    async def serve():
        request = Request({"type": "http", "headers": []}, receive)
        with watch_departure(request):
            listen = request.scope["state"]["on_departure"]
            if early:
                listen(lambda: heard.append("first"))
                await asyncio.sleep(0.01)
                assert heard == ["first"]
            await asyncio.to_thread(listen, lambda: heard.append("second"))
            await asyncio.sleep(0.01)
        assert "second" in heard

    asyncio.run(serve())
