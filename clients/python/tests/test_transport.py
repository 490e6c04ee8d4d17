"""Retries: after refusals, and behind a proxy that loses answers."""

from __future__ import annotations

import time

import httpx2
import numpy as np
import pytest

from anchorage_client import (
    AuthenticationError,
    Client,
    PermissionDeniedError,
    RateLimitError,
    UnavailableError,
)
from anchorage_client._sync.jobs import Job
from anchorage_client._sync.transport import pause_before, retry_after, to_bytes
from anchorage_client.errors import error_of
from app.access.service import create_key
from app.context import RequestContext
from app.main import create_app
from app.settings import Settings
from app.types import Scope
from tests.serving import listening


def test_advice_is_in_calls_of_this_client():
    found = error_of(409, {"detail": "Use POST /anchor-sets. First DELETE /stores/docs."}).detail
    assert found == 'Use client.anchor_sets.create. First client.stores.delete("docs").'


def test_names_that_urls_leave_out_and_urls_without_a_scheme_are_refused(client):
    for name in ("", ".", ".."):
        with pytest.raises(ValueError, match="is no name"):
            client.encoders.delete(name)
    with pytest.raises(ValueError, match="must begin with http"):
        Client("localhost:8080")


def test_a_create_whose_answer_was_lost_is_not_repeated_and_other_requests_are(mocked):
    sent = []

    def lose_the_first(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.method)
        if len(sent) == 1:
            raise httpx2.ReadError("lost", request=request)
        if request.method == "DELETE":  # the lost one was done
            return httpx2.Response(404, json={"code": "encoder-not-found"})
        return httpx2.Response(200, json={"name": "a", "encoders": []})

    for call, more, repeats in (("create", {"dim": 3}, 0), ("get", {}, 1), ("delete", {}, 1)):
        sent.clear()
        act = getattr(mocked(lose_the_first, retries=3).encoders, call)
        if repeats:
            act("a", **more)
        else:
            with pytest.raises(UnavailableError) as error:
                act("a", **more)
            assert (error.value.status, error.value.code) == (None, "no-answer")
        assert len(sent) == 1 + repeats


def test_retries_wait_as_long_as_the_service_says_and_the_last_refusal_says_it_too(mocked):
    refusal = httpx2.Response(429, json={"code": "too-much-at-once", "retry_after": 1})
    refusal.headers["Retry-After"] = "1"
    with pytest.raises(RateLimitError) as refused:
        mocked(lambda _: refusal).encoders.list()
    assert (refused.value.code, refused.value.retry_after) == ("too-much-at-once", 1)
    answers = [httpx2.Response(200, json={"encoders": []}), refusal]
    start = time.monotonic()
    assert mocked(lambda _: answers.pop(), retries=1).encoders.list() == []
    assert time.monotonic() - start > 1


def test_the_id_of_a_row_whose_vectors_are_deleted_reaches_the_service(mocked):
    seen = []
    client = mocked(lambda request: seen.append(request.url.query) or httpx2.Response(204))
    client.stores.delete_native_vectors("docs", "a b")
    assert seen == [b"id=a%20b"]


def test_a_restart_does_not_end_the_wait_for_a_job(mocked, monkeypatch):
    """The service answers, is away, answers that it begins, and answers the end."""
    monkeypatch.setattr("anchorage_client._sync.jobs.POLL_S", 0.05)
    answers = iter(["running", None, 503, "running", "succeeded"])

    def answer(_: httpx2.Request) -> httpx2.Response:
        state = next(answers)
        if state is None:
            raise httpx2.ConnectError("refused")
        if isinstance(state, int):
            return httpx2.Response(state, json={"code": "starting"})
        return httpx2.Response(200, json={"id": "17", "state": state, "result": {"made": 1}})

    client = mocked(answer)
    job = Job[object](client._transport, {"id": "17", "kind": "compare", "state": "running"})
    assert job.wait() == {"made": 1}


def test_a_service_that_stays_away_ends_the_wait_with_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr("anchorage_client._sync.jobs.MAX_AWAY_S", 0.2)
    monkeypatch.setattr("anchorage_client._sync.jobs.POLL_S", 0.1)
    with Client("http://127.0.0.1:1") as client:
        with pytest.raises(UnavailableError, match=r"Is `anchorage serve` running\?"):
            client.encoders.list()
        job = Job[object](client._transport, {"id": "17", "kind": "compare", "state": "running"})
        with pytest.raises(UnavailableError, match=r"client\.jobs\.get\('17'\)\.wait\(\)"):
            job.wait(progress=True)
    assert capsys.readouterr().err == "compare: the service does not answer\n"


def test_keys_open_the_service_within_their_scopes(tmp_path):
    app = create_app(Settings(data_dir=tmp_path, auth="keys"))
    with listening(app) as (host, port):
        url, context = f"http://{host}:{port}", RequestContext("default")
        _, key = create_key(app.state.services, context, name="first", scopes=[Scope.admin])
        for wrong in (None, "anc_wrong"):
            with Client(url, api_key=wrong) as client, pytest.raises(AuthenticationError):
                client.translate(np.zeros((1, 2)), source="a", target="b", anchor_set="c")
        with Client(url, api_key=key) as admin:
            reader = admin.api_keys.create("reader", scopes=["read"])
            with Client(url, api_key=reader["key"]) as client:
                assert client.encoders.list() == []
                with pytest.raises(PermissionDeniedError, match="scope `write`"):
                    client.encoders.create("x", dim=2)
            admin.api_keys.delete(reader["id"])


def test_pauses_double_are_spread_and_have_a_limit():
    for attempt in range(12):
        longest = min(30.0, 0.5 * 2**attempt)
        assert all(longest / 2 <= pause_before(attempt, None) <= longest for _ in range(50))
    assert all(2 <= pause_before(0, 2.0) <= 2.25 for _ in range(50))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0.5", 0.5),
        ("soon", None),
        ("nan", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_an_odd_retry_after_is_no_fault(header, seconds):
    assert retry_after(httpx2.Response(429, headers={"Retry-After": header})) == seconds


def test_a_key_may_end_with_a_line_break_and_an_empty_one_is_none():
    for key in ("anc_x\n", " anc_x"):
        with Client("http://127.0.0.1:1", api_key=key) as client:
            assert client._transport.http.headers["Authorization"] == "Bearer anc_x"
    with Client("http://127.0.0.1:1", api_key="") as client:
        assert "Authorization" not in client._transport.http.headers
    for key in ("anc\nx", "anc_\u00e9"):
        with pytest.raises(ValueError, match="key contains characters") as wrong:
            Client("http://127.0.0.1:1", api_key=key)
        assert key not in str(wrong.value)


def test_numbers_of_numpy_are_numbers_and_nan_is_refused():
    body = {"dim": np.int64(5), "ids": np.arange(3), "share": np.float32(0.5), "text": "ü"}
    assert to_bytes(body) == '{"dim": 5, "ids": [0, 1, 2], "share": 0.5, "text": "ü"}'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_bytes({"weight": float("nan")})
    with pytest.raises(TypeError, match="no form for set"):
        to_bytes({"ids": {1}})
