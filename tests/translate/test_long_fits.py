"""Requests whose fit is long: they are answered with a job, and repeated when it has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from starlette.requests import Request

from anchorage_client import Client
from app.db import tables
from app.errors import FitQueued
from app.jobs import answers
from tests.translate.translations import PAIR, asker
from tests.waiting import slack


@pytest.fixture
def ask(stocked, embeddings):
    return asker(stocked, embeddings["first"])


@pytest.fixture
def short(stocked, monkeypatch) -> Iterator[None]:
    """The service leaves every fit to jobs."""
    monkeypatch.setitem(stocked.app.state.services.__dict__, "request_fit_s", 0.0)


def finished(client, path: str) -> dict:
    deadline = time.monotonic() + 30 * slack()
    while (job := client.get(path).json())["finished_at"] is None:
        assert time.monotonic() < deadline, job
        time.sleep(0.02)
    return job


def test_a_long_fit_is_answered_with_its_job_and_the_repetition_with_the_result(
    ask, stocked, short
):
    more = {"method": "ridge", "options": {"ridge": 0.1}}
    queued = ask(**more)
    assert (queued.status_code, queued.json()["kind"]) == (202, "fit")
    assert queued.headers["location"] == f"/jobs/{queued.json()['id']}"
    assert int(queued.headers["retry-after"]) >= 0
    job = finished(stocked, queued.headers["location"])
    assert job["state"] == "succeeded", job
    answer = ask(**more)
    assert answer.is_success, answer.text
    assert job["result"]["translator"] == answer.json()["translator"]


def test_clients_of_openai_are_told_to_come_again(stocked):
    scope = {"type": "http", "path": "/v1/embeddings", "headers": [], "app": stocked.app}
    error = FitQueued("A job makes it.", tables.JobRow(id="j"), retry_after_s=7)
    answer = asyncio.run(answers.fit_queued(Request(scope), error))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert b'"code":"fit-queued"' in answer.body


def test_our_client_waits_for_the_job_and_repeats_the_request(stocked, embeddings, short):
    client = Client("http://127.0.0.1")
    client._transport.http.close()
    client._transport.http = stocked
    options = {"ridge": 0.9}
    found = client.translate(embeddings["first"][:3], **PAIR, method="ridge", options=options)
    assert found.vectors.shape == (3, 6)
    [job] = [each for each in client.jobs.list() if each["kind"] == "fit"][:1]
    assert job["state"] == "succeeded"
