"""/relative with `bits`: rounded cosines in every form of answer, and /translate of them."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc
from starlette.testclient import TestClient

from app.maths.geometry.quantise import keeps_levels

JSON, NPY, ARROW = "application/json", "application/x-npy", "application/vnd.apache.arrow.stream"
NAMES = {"encoder": "first", "anchor_set": "items"}
VECTORS = np.random.default_rng(5).normal(size=(50, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def service(stock: Callable[..., TestClient], parallel: dict[str, np.ndarray]) -> TestClient:
    """A service with two encoders."""
    return stock(parallel)


def as_npy(rows: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, rows)
    return file.getvalue()


def as_arrow(rows: np.ndarray) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table(
        {"vector": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])}
    )
    with ipc.new_stream(sink, table.schema) as writer:
        for each in table.to_batches(max_chunksize=20):
            writer.write_batch(each)
    return sink.getvalue().to_pybytes()


def ask(service: TestClient, **more: Any) -> Any:
    return service.post("/relative", json={**NAMES, "vectors": VECTORS.tolist(), **more})


def send(
    service: TestClient, media: str, rows: np.ndarray = VECTORS, accept: str = "*/*", **more: Any
) -> Any:
    body = as_npy(rows) if media == NPY else as_arrow(rows)
    return service.post(
        "/relative",
        params={**NAMES, **more},
        content=body,
        headers={"content-type": media, "accept": accept},
    )


def read(answer: Any) -> tuple[np.ndarray, Any]:
    """The matrix of an answer in any form, and its `quantised` member."""
    assert answer.status_code == 200, answer.text
    media = answer.headers["content-type"]
    if media == NPY:
        return np.load(io.BytesIO(answer.content)), json.loads(
            answer.headers["anchorage-quantised"]
        )
    if media == ARROW:
        with ipc.open_stream(answer.content) as reader:
            said, column = (
                reader.schema.metadata[b"anchorage.quantised"],
                reader.read_all().column("vector").combine_chunks(),
            )
        assert json.loads(answer.headers["anchorage-quantised"]) == json.loads(said)
        return column.flatten().to_numpy().reshape(len(column), -1), json.loads(said)
    value = answer.json()["vectors"]
    if isinstance(value, dict):
        return np.frombuffer(b64decode(value["base64"]), value["dtype"]).reshape(
            value["shape"]
        ), answer.json()["quantised"]
    return np.array(value, np.float32), answer.json()["quantised"]


def plain(service: TestClient, rows: np.ndarray = VECTORS) -> np.ndarray:
    return np.load(io.BytesIO(send(service, NPY, rows).content))


# --- every form -----------------------------------------------------------------------------------


def test_widths_are_remembered_apart(service):
    """The cache of plans distinguishes the number of bits."""
    for _ in range(2):
        found = {bits: read(ask(service, bits=bits))[0] for bits in (3, 8, 5)}
        assert all(len(np.unique(rows)) <= 2**bits - 1 for bits, rows in found.items())
        assert len(np.unique(plain(service))) > 500


# --- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 17, 8.5, "8"])
def test_bits_that_are_no_width_are_refused(service, refused, bits):
    refused(ask(service, bits=bits), 422, "invalid-request", "bits")


@pytest.mark.parametrize("bits", [12, 13])
def test_more_bits_than_float16_holds_are_refused(service, refused, bits):
    answer = ask(service, bits=bits, dtype="float16")
    if keeps_levels(bits, "float16"):
        assert answer.status_code == 200
    else:
        refused(answer, 422, "invalid-option", "bits", detail="float16")
    assert keeps_levels(bits, "float16") == (bits <= 12)
