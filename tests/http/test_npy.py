"""npy in and out, which form an answer takes, and fields in the query string."""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.testclient import TestClient

from app.errors import AnchorageError, NotAcceptable, OutOfRange
from app.http import bodies, npy, query_fields
from app.http.answers import Writer, describe_in_headers, preferred_media
from app.http.field_errors import CODES, field_of
from app.http.problems import status_of
from app.translate.endpoints import TranslateRequest

JSON, NPY = "application/json", "application/x-npy"
PAIR = {"source": "first", "target": "second", "anchor_set": "items"}
TRANSLATE = "/translate?source=first&target=second&anchor_set=items"
RELATIVE = "/relative?encoder=first&anchor_set=items"
VECTORS = np.random.default_rng(5).normal(size=(5, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def service(stock: Callable[..., TestClient], parallel: dict[str, np.ndarray]) -> TestClient:
    """The running service with two encoders and their parallel anchors."""
    return stock(parallel)


def written(array: np.ndarray, **how: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **how)
    return file.getvalue()


def with_header(
    text: str | bytes, data: bytes = VECTORS.tobytes(), version: tuple[int, int] = (1, 0)
) -> bytes:
    head = text if isinstance(text, bytes) else text.encode()
    size = struct.pack("<H" if version[0] == 1 else "<I", len(head))
    return b"\x93NUMPY" + bytes(version) + size + head + data


def described(descr: str = "'<f4'", shape: str = "(5, 8)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def send(client: TestClient, body: bytes, path: str = "", media: str = NPY, **headers: str) -> Any:
    path = path or (TRANSLATE if media == NPY else "/translate")
    return client.post(path, content=body, headers={"content-type": media, **headers})


def numbers(answer: Any, field: str = "vectors") -> np.ndarray:
    """The matrix of an answer in whichever form."""
    assert answer.status_code == 200, answer.text
    media = answer.headers["content-type"]
    if media == NPY:
        return np.load(io.BytesIO(answer.content), allow_pickle=False)
    value = answer.json()[field]
    if isinstance(value, dict):
        return np.frombuffer(b64decode(value["base64"]), value["dtype"]).reshape(value["shape"])
    return np.array(value, np.float32)


# --- npy in ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_of_any_float_order_and_version_is_its_numbers(dtype, order, version):
    array = np.asarray(VECTORS.astype(dtype), order=order)
    for body in (written(array, version=version), memoryview(bytearray(written(array)))):
        assert np.array_equal(npy.read(body).numpy(), array)


def test_a_set_takes_another_encoders_embeddings_as_npy(service, refused):
    generator = np.random.default_rng(1)
    anchors, vectors = generator.normal(size=(20, 8)), generator.normal(size=(20, 6)).astype("<f2")
    body = {"name": "more", "embeddings": {"first": anchors.tolist()}}
    assert service.post("/anchor-sets", json=body).status_code == 201
    path, headers = "/anchor-sets/more/embeddings/second", {"content-type": NPY}
    answer = service.put(path, content=written(vectors[:, :5]), headers=headers)
    refused(answer, 422, "dimension-mismatch", "vectors")
    answer = service.put(path, content=written(np.asfortranarray(vectors)), headers=headers)
    assert (answer.status_code, answer.json()["encoders"]) == (201, ["first", "second"])
    itself = numbers(send(service, written(vectors), "/relative?encoder=second&anchor_set=more"))
    np.testing.assert_allclose(np.diag(itself), 1, atol=1e-3)  # row i is anchor i
    assert service.delete("/anchor-sets/more").status_code == 204


#: what an error shows of Python's own
INSIDE = r"0x|ast\.|object at|<class|lambda"

NO_NPY = {
    "nothing": b"",
    "a pickle": pickle.dumps(VECTORS),
    "a byte missing": written(VECTORS)[:-1],
    "far more": with_header(described(shape=f"({2**62}, 8)")),
    "another key": with_header(described()[:-2] + "'x': 1}"),
    "deep nesting": with_header("(" * 500 + ")" * 500),
    "another version": with_header(described(), version=(4, 0)),
    "a call": with_header("__import__('os').abort()"),
    "a header of gigabytes": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + described().encode(),
}
NO_MATRIX = {
    "integers": (written(VECTORS.astype("i4")), "bad-dtype"),
    "no rows": (written(VECTORS[:0]), "empty-vectors"),
    "negative rows": (with_header(described(shape="(-5, 8)")), "bad-shape"),
    "true rows": (with_header(described(shape="(True, 8)"), VECTORS[:1].tobytes()), "bad-shape"),
}


@pytest.mark.parametrize("name", [*NO_NPY, *NO_MATRIX])
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_what_is_no_matrix_of_floats_is_refused(name):
    body, code = NO_MATRIX.get(name) or (NO_NPY[name], "bad-npy")
    with pytest.raises(AnchorageError) as refused:
        npy.read(body)
    error = refused.value
    assert (error.code, error.field) == (code, "vectors")
    assert status_of(error) == (400 if name in NO_NPY else 422)
    assert not re.search(INSIDE, error.detail), "nothing of the inside"


# --- the form of the answer -----------------------------------------------------------------------


def forms() -> dict[str, tuple[str, bytes]]:
    """The same vectors in every form: media type and body."""
    base64 = {"dtype": "float32", "shape": [5, 8], "base64": b64encode(VECTORS.tobytes()).decode()}
    return {
        "json": (JSON, json.dumps({**PAIR, "vectors": VECTORS.tolist()}).encode()),
        "base64": (JSON, json.dumps({**PAIR, "vectors": base64}).encode()),
        "npy": (NPY, written(VECTORS)),
    }


@pytest.mark.parametrize(
    ("accept", "as_json", "as_npy"),
    [
        ("", JSON, NPY),
        ("application/*", JSON, NPY),
        ("text/html, */*;q=0.1", JSON, NPY),
        ("APPLICATION/X-NPY", NPY, NPY),
        (f"{JSON}, {NPY}", JSON, JSON),
        (f"{NPY};q=0, {JSON}, */*;q=0.1", JSON, JSON),
        (f"text/csv, {NPY};q=0.01", NPY, NPY),
        ("text/html", None, None),
        (f"{NPY};q=0", None, None),
        (",;q=1,,", None, None),
        ("x" * 5000, None, None),
    ],
)
def test_the_accept_header_chooses_the_form(accept, as_json, as_npy):
    request = Request({"type": "http", "headers": [(b"accept", accept.encode())]})
    for own, expected in ((JSON, as_json), (NPY, as_npy)):
        if expected is None:
            with pytest.raises(NotAcceptable) as refused:
                preferred_media(request, own)
            assert refused.value.field == "Accept"
        else:
            assert preferred_media(request, own) == expected


def test_an_answer_has_the_form_of_the_body_or_of_accept_and_says_where_its_time_went(
    service, refused
):
    answers = []
    for media, body in forms().values():
        for accept, expected in (("", media), (JSON, JSON), (NPY, NPY)):
            answer = send(service, body, media=media, accept=accept)
            assert answer.headers["content-type"] == expected
            timing = answer.headers["server-timing"].split(", ")
            parts = dict(part.split(";dur=") for part in timing)
            assert list(parts) == ["read", "parse", "answer"]
            assert all(0 <= float(milliseconds) < 60_000 for milliseconds in parts.values())
            answers.append(numbers(answer))
    for each in answers:
        np.testing.assert_allclose(each, answers[0], rtol=1e-5, atol=1e-5)
    answer = send(service, written(VECTORS), accept="text/html")
    refused(answer, 406, "not-acceptable", "Accept")


@pytest.mark.parametrize("media", [JSON, NPY])
def test_answers_beyond_float16_are_refused_by_row_in_every_form(media):
    rows = torch.ones(4, 2)
    rows[2] = 1e9
    assert Writer(media, dtype="float32").respond(rows, {}).status_code == 200
    with pytest.raises(OutOfRange) as refused:
        Writer(media, dtype="float16").respond(rows, {})
    assert (refused.value.field, refused.value.rows) == ("vectors", [2])


def test_flags_and_what_served_it_are_said_in_headers(service):
    flags = [{"row": row, "code": "equals-anchor-mean"} for row in range(300)]
    headers = describe_in_headers({"flags": flags, "method": None, "vectors": [1]})
    assert headers.keys() == {"Anchorage-Flag-Count", "Anchorage-Flags"}
    assert headers["Anchorage-Flag-Count"] == "300"
    assert json.loads(headers["Anchorage-Flags"]) == flags[:100]
    answer = send(service, written(VECTORS))
    listed = send(service, forms()["json"][1], media=JSON).json()
    assert answer.headers["anchorage-translator"] == listed["translator"]
    assert answer.headers["anchorage-method"] == listed["method"]
    assert json.loads(answer.headers["anchorage-options"]) == listed["options"]
    assert "anchorage-flags" not in answer.headers


# --- fields in the query string -------------------------------------------------------------------


def read_query(more: str) -> TranslateRequest:
    """The fields of an npy body and a query string."""
    query = f"{TRANSLATE}&{more}".partition("?")[2].encode()
    request = Request({"type": "http", "headers": [], "query_string": query})
    fields = query_fields.read(request, TranslateRequest, npy.read(written(VECTORS)))
    return bodies.validate(TranslateRequest, fields, "query string")


def test_fields_and_options_in_the_query_mean_what_they_mean_in_a_body():
    options = {"delta": 0, "omega": 3, "seed": 11, "renormalise": False, "keep_norms": True}
    body = {**PAIR, "method": "irp", "options": options, "encoding": "float"}
    query = "method=irp&delta=0&omega=3&seed=11&renormalise=false&keep_norms=true&encoding=float"
    read = read_query(query)
    assert read.model_dump(exclude={"vectors"}) == (
        TranslateRequest.model_validate(body).model_dump(exclude={"vectors"})
    )
    assert np.array_equal(read.vectors.numpy(), VECTORS)


def test_relative_vectors_may_be_the_whole_body(service, refused):
    coordinates = numbers(send(service, written(VECTORS), RELATIVE + "&encode_power=1"))
    pair = {"target": "second", "anchor_set": "items", "relative_power": 1}
    listed = service.post("/translate", json={**pair, "relative": coordinates.tolist()})
    path = "/translate?target=second&anchor_set=items&relative_power=1&relative=true"
    np.testing.assert_allclose(
        numbers(send(service, written(coordinates), path)), numbers(listed), rtol=1e-5, atol=1e-5
    )
    wrong = refused(send(service, written(VECTORS), path), 422, "dimension-mismatch", "relative")
    assert "40" in wrong["detail"]


@pytest.mark.parametrize(
    ("more", "code", "field"),
    [
        ("foo=1", "unknown-field", "foo"),
        ("target=second", "invalid-request", "target"),
        ("seed=1&seed=2", "invalid-request", "seed"),
        ("seed=18446744073709551616", "invalid-request", "options.seed"),
        ("delta=NaN", "invalid-request", "options.delta"),
        ("method=nearest", "invalid-request", "method"),
        ("options=x&delta=0.5", "invalid-request", "options"),
        ("inputs=a", "invalid-request", "inputs"),
        ("relative=1", "invalid-request", "relative"),
        ("dtype=float64", "invalid-request", "dtype"),
    ],
)
def test_wrong_fields_in_the_query_are_refused_where_they_stand(more, code, field):
    with pytest.raises((AnchorageError, RequestValidationError)) as refused:
        read_query(more)
    if isinstance(refused.value, AnchorageError):
        assert (refused.value.code, refused.value.field) == (code, field)
    else:
        [item] = refused.value.errors()
        assert (CODES.get(item["type"], "invalid-request"), field_of(item)) == (code, field)


def test_json_with_a_query_is_refused_and_npy_without_its_fields(service, refused):
    refused(send(service, b"{}"), 400, "bad-npy", "vectors")
    body = json.dumps({**PAIR, "vectors": VECTORS.tolist()}).encode()
    refused(send(service, body, "/translate?seed=1", JSON), 422, "invalid-request", "seed")
    refused(send(service, written(VECTORS), "/translate"), 422, "missing-field", "target")
    many = "&".join(f"f{number}=1" for number in range(3000))
    assert send(service, written(VECTORS), f"/translate?{many}").status_code == 422
