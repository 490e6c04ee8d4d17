"""Bodies of multipart/form-data: files as inputs, and everything that is none."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from io import BytesIO

import numpy as np
import pytest

from app.api.http import multipart
from app.errors import MalformedParts

Image = pytest.importorskip("PIL.Image")

RNG = np.random.default_rng(2)
PICTURES = [
    Image.fromarray(RNG.integers(0, 256, (side, 50, 3), dtype=np.uint8)) for side in (40, 50, 90)
]


def written(picture, kind: str = "PNG") -> bytes:
    file = BytesIO()
    picture.save(file, kind)
    return file.getvalue()


FILES = [written(picture) for picture in PICTURES]
BASE64 = [base64.b64encode(file).decode() for file in FILES]


def chunk(name: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def bomb(side: int) -> bytes:
    """A PNG of side x side black pixels, a few kilobytes long."""
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * ((side + 7) // 8 + 1) * side, 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def part(name: str, content: bytes, *more: bytes) -> bytes:
    head = b"\r\n".join(
        [b'Content-Disposition: form-data; name="%s"; filename="x"' % name.encode(), *more]
    )
    return b"--edge\r\n" + head + b"\r\n\r\n" + content + b"\r\n"


END = b"--edge--\r\n"
MEDIA = {"content-type": "multipart/form-data; boundary=edge"}


@pytest.fixture(scope="module")
def head(encoding, fresh):
    """A decoder that answers the first four numbers of `eye`'s vectors."""
    dim = encoding.http.get("/encoders/eye").json()["dim"]
    body = {
        "name": fresh(),
        "encoder": "eye",
        "output": {"kind": "numbers"},
        "weight": np.eye(dim)[:4].tolist(),
    }
    answer = encoding.http.post("/heads", json=body)
    assert answer.status_code == 201, answer.text
    return body["name"]


@pytest.fixture
def send(encoding, head):
    """POST /stitch of files to their own encoder's decoder, as a client's library writes them."""

    def post(files, request=None, path="/stitch"):
        body = {"encoder": "eye", "head": head} if request is None else request
        parts = [("request", ("", json.dumps(body), "application/json"))]
        return encoding.http.post(
            path, files=[*parts, *(("inputs", (f"{n}.png", file)) for n, file in enumerate(files))]
        )

    return post


@pytest.fixture
def raw(encoding, head):
    """POST /stitch of a body as it is; REQUEST stands for the part that names encoder and head."""
    request = part("request", json.dumps({"encoder": "eye", "head": head}).encode())

    def post(body, headers=None):
        content = body.replace(b"REQUEST", request)
        return encoding.http.post("/stitch", content=content, headers=headers or MEDIA)

    return post


# --- vectors --------------------------------------------------------------------------------------


def test_files_base64_and_data_urls_give_the_same_vectors(encoding, head, send):
    body = {"encoder": "eye", "head": head}
    by_file = send(FILES).json()["outputs"]
    by_base64 = encoding.http.post("/stitch", json={**body, "inputs": BASE64}).json()["outputs"]
    urls = [f"data:image/png;base64,{text}" for text in BASE64]
    by_url = encoding.http.post("/stitch", json={**body, "inputs": urls}).json()["outputs"]
    np.testing.assert_allclose(by_file, by_base64, atol=1e-6)
    np.testing.assert_allclose(by_file, by_url, atol=1e-6)
    assert np.ptp(by_file, axis=0).max() > 1e-2
    by_openai = encoding.http.post("/v1/embeddings", json={"model": "eye", "input": urls}).json()[
        "data"
    ]
    np.testing.assert_allclose(by_file, [item["embedding"][:4] for item in by_openai], atol=1e-5)


def test_texts_may_not_come_as_files_nor_images_to_an_encoder_of_texts(send, refused):
    body = {"source": "minilm", "target": "own", "anchor_set": "texts"}
    refused(send([b"a text"], body, "/translate"), 422, "invalid-input", "inputs", [0])


@pytest.mark.parametrize(
    "path",
    [
        "/v1/embeddings",
        "/encoders",
        "/heads",
        "/bootstrap",
    ],
)
def test_files_are_refused_where_no_inputs_go(send, complaint, path):
    status, _ = complaint(send(FILES[:1], {}, path))
    assert status in (400, 404, 422)


# --- files that are no images ---------------------------------------------------------------------

BAD = {
    "garbage": (b"garbage" * 100, "invalid-image"),
    "a bomb": (bomb(30_000), "image-too-large"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_image_is_refused_by_row(send, refused, name):
    file, code = BAD[name]
    problem = refused_any(send([FILES[0], file, FILES[1]]), code)
    assert problem["field"] == "inputs"
    assert problem["rows"] == [1]


def refused_any(answer, code):
    assert answer.status_code in (413, 422), answer.text
    assert answer.json()["code"] == code
    return answer.json()


# --- bodies that are no parts ---------------------------------------------------------------------

FILE = part("inputs", FILES[0])


BODIES = {
    "nothing": b"",
    "only an end": END,
    "no end": b"REQUEST" + FILE,
    "cut in a file": b"REQUEST" + FILE[:200],
    "no request": FILE + END,
    "two requests": b"REQUESTREQUEST" + END,
    "another boundary": b"REQUEST".replace(b"edge", b"rim")
    + FILE.replace(b"edge", b"rim")
    + b"--rim--\r\n",
    "json": b'{"encoder": "eye"}',
    "an unknown part": b"REQUEST" + part("colour", b"red") + END,
    "a part without a name": b"REQUEST--edge\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END,
    "a part without headers": b"REQUEST--edge\r\n\r\nx\r\n" + END,
    "an attachment": b'REQUEST--edge\r\nContent-Disposition: attachment; name="inputs"\r\n\r\nx\r\n'
    + END,
    "a header of a megabyte": b"REQUEST"
    + part("inputs", FILES[0], b"X-Long: " + b"x" * 2**20)
    + END,
    "no colon": b"REQUEST--edge\r\nContent-Disposition\r\n\r\nx\r\n" + END,
    "half a line end": b"REQUEST--edge\nContent-Disposition: form-data; name=inputs\n\nx\n"
    b"--edge--\n",
    "controls in a header": b"REQUEST--edge\r\n"
    b'Content-Disposition: form-data; name="inp\x00uts"\r\n\r\nx\r\n' + END,
}


def split(body):
    """What the parser makes of a body, in which REQUEST stands for a part of JSON."""
    return multipart.split(MEDIA["content-type"], body.replace(b"REQUEST", part("request", b"{}")))


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_parts_is_refused(name):
    with pytest.raises(MalformedParts):
        split(BODIES[name])


REQUESTS = {
    "no JSON": (b"{", 400),
    "a list": (b"[]", 422),
    "deep": (b"[" * 100_000, 400),
    "inputs": (b'{"inputs": []}', 422),
    "not text": (b"\xff\xfe", 400),
    "empty": (b"", 400),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_part_of_wrong_json_is_refused(raw, name):
    content, status = REQUESTS[name]
    answer = raw(part("request", content) + FILE + END)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "media",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary=""',
        "multipart/form-data; boundary=" + "b" * 71,
        "multipart/form-data; boundary=*",
    ],
    ids=lambda media: media[:60],
)
def test_a_boundary_that_is_none_is_refused(media):
    with pytest.raises(MalformedParts):
        multipart.split(media, part("request", b"{}") + FILE + END)


def test_thousands_of_parts_are_too_many_and_fewer_too_many_inputs(raw, refused):
    refused(
        raw(b"REQUEST" + part("inputs", b"") * 5_000 + END), 413, "body-too-large", detail="4096"
    )
    refused(raw(b"REQUEST" + part("inputs", b"") * 4_000 + END), 413, "too-many-inputs", "inputs")
    refused(raw(b"REQUEST" + END), 422, "empty-vectors", "inputs")


def test_changed_bytes_are_read_or_refused_and_never_fail():
    body = part("request", b"{}") + part("inputs", FILES[0][:60]) + END
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(500):
        changed = bytearray(body)
        for _ in range(int(generator.integers(1, 4))):
            at, kind = int(generator.integers(len(changed))), int(generator.integers(3))
            if kind == 0:
                changed[at] = int(
                    generator.choice([0, 9, 10, 13, 32, 34, 45, 58, 59, 61, 92, 123, 128, 255])
                )
            elif kind == 1:
                del changed[at : at + int(generator.integers(1, 20))]
            else:
                changed[at:at] = changed[at : at + int(generator.integers(1, 20))]
        try:
            multipart.split(MEDIA["content-type"], bytes(changed))
        except MalformedParts:
            refused += 1
    assert 0 < refused < 500
