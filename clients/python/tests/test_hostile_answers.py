"""Answers that no Anchorage gives: each ends in an AnchorageError, and none fills the memory."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from itertools import chain, count, repeat
from typing import Any

import httpx2
import numpy as np
import pytest

from anchorage_client import AnchorageError, AsyncClient, Client, UnavailableError
from anchorage_client._sync import jobs, transport
from anchorage_client.vectors import to_npy

ROWS = np.zeros((1, 2), np.float32)
PAIR = {"source": "a", "target": "b", "anchor_set": "s"}


@pytest.fixture
def answering(mocked: Callable[..., Client]) -> Callable[..., Client]:
    """Returns a client of a program that gives each request one body, which may have no end."""

    def client_of(body: bytes, *, endless: bool = False, **headers: str) -> Client:
        def answer(_: httpx2.Request) -> httpx2.Response:
            parts = chain([body], repeat(bytes(2**20))) if endless else [body]
            return httpx2.Response(200, headers=headers, content=parts)

        return mocked(answer)

    return client_of


CALLS: dict[str, Callable[[Client], Any]] = {
    "ready": lambda client: client.ready(),
    "encoders": lambda client: client.encoders.list(),
    "migrations": lambda client: client.migrations.list(),
    "create": lambda client: client.anchor_sets.put("s", "a", ROWS),
    "embed": lambda client: client.embed("text", model="a"),
    "translate": lambda client: client.translate(ROWS, **PAIR),
    "stream": lambda client: list(client.translate_stream(ROWS, **PAIR)),
    "relative": lambda client: client.relative(ROWS, encoder="a", anchor_set="s"),
    "stitch": lambda client: client.stitch(ROWS, encoder="a", head="h"),
    "search": lambda client: client.stores.search("docs", target="b", queries=ROWS),
    "translator": lambda client: client.translator(**PAIR).download(),
    "job": lambda client: client.jobs.get("1").wait(),
}

BODIES = {
    "nothing": b"",
    "page": b"<html>",
    "list": b"[1]",
    "empty": b"{}",
    "deep": b"[" * 200_000,
    "types": json.dumps(
        {
            "data": [{"embedding": 5}],
            "encoders": 5,
            "vectors": {"base64": "!"},
            "results": [5],
            "state": "running",
            "progress": [1],
            "next_before": 5,
        }
    ).encode(),
    "npy": to_npy(ROWS)[:-1],
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("call", CALLS)
def test_a_malformed_answer_is_an_error_of_the_client(answering, monkeypatch, call, body):
    monkeypatch.setattr(jobs, "MAX_AWAY_S", 0.0)  # it may be the page of a proxy during a restart
    client = answering(BODIES[body])
    valid = call in ("ready", "create") and body in ("empty", "types")
    if valid:  # these pass on whatever object the service sent
        CALLS[call](client)
        return
    with pytest.raises(AnchorageError) as error:
        CALLS[call](client)
    assert error.value.code == "not-anchorage"


def test_a_body_of_another_code_and_an_array_of_an_absurd_size_are_errors_too(answering):
    with pytest.raises(UnavailableError, match="cannot be decoded"):
        answering(b"{}", **{"Content-Encoding": "gzip"}).ready()
    head = np.lib.format.header_data_from_array_1_0(ROWS) | {"shape": (2**50, 2)}
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, head)
    with pytest.raises(UnavailableError, match="another form"):
        list(answering(file.getvalue()).translate_stream(ROWS, **PAIR))


def test_an_answer_without_an_end_is_cut_off(answering, monkeypatch):
    monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 2**22)
    client = answering(b"{", endless=True)
    with pytest.raises(UnavailableError, match="more than 4,194,304 bytes"):
        client.ready()


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("encoders", b'{"encoders": [{"name": "a"}]}'),
        ("migrations", b'{"migrations": [{"id": "1"}], "next_before": "1"}'),
    ],
)
def test_pages_that_do_not_advance_end_with_an_error(answering, call, body):
    with pytest.raises(UnavailableError, match=r"The pages of /.* have no end"):
        CALLS[call](answering(body))


def test_a_problem_with_rows_that_are_no_numbers_stays_readable():
    error = AnchorageError(422, {"code": "x", "rows": ["a"]})
    assert error.rows is None
    assert error.problem["rows"] == ["a"]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_the_text_of_a_client_shows_its_address_and_neither_key_nor_password(kind):
    client = kind("https://me:hunter2@host/base", api_key="anc_secret")
    assert repr(client) == f"{kind.__name__}('https://host/base/')"
    assert str(client) == repr(client)


@pytest.mark.parametrize(
    ("fits", "error", "message"),
    [
        ([("1", "succeeded")], UnavailableError, "the job 1, which has ended"),
        ([("1", "running"), ("1", "running")], UnavailableError, "the job 1, which has ended"),
        (((str(n), "running") for n in count()), TimeoutError, "more than 1 s"),
    ],
)
def test_a_service_that_always_queues_a_fit_does_not_hold_a_client(
    mocked, monkeypatch, fits, error, message
):
    monkeypatch.setattr(transport, "MAX_FIT_WAIT_S", 1.0)
    states = iter(fits)

    def answer(request: httpx2.Request) -> httpx2.Response:
        job = request.url.path.rpartition("/")[2], "succeeded"
        name, state = next(states) if request.method == "POST" else job
        return httpx2.Response(202, json={"id": name, "kind": "fit", "state": state})

    with pytest.raises(error, match=message):
        mocked(answer).translate(ROWS, **PAIR)
