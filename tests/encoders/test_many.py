"""Many texts at once: by an endpoint, over sockets, and by a model of the service."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest
import torch

from app.context import RequestContext
from app.db import resources, tables
from app.encoders import encoding as encoding_service
from app.encoders.encoding import EncodedTexts, count_tokens, encode_many
from app.encoders.models.remote import endpoint as endpoint_module
from app.errors import EncoderChanged, EncoderFailed, InvalidInput
from tests.encoders.models.remote.endpoints import expected_vectors
from tests.waiting import slack, until

CONTEXT = RequestContext("default")
TEXTS = [f"text {number} " + "word " * (number % 7) for number in range(100)]


def row_of(client, name):
    services = client.app.state.services
    with services.db.transaction() as session:
        return services, resources.by_name(session, tables.EncoderRow, "default", name)


@pytest.fixture
def remote(serve, endpoint):
    """The services and the encoder `ada`, which takes 8 texts a request."""
    client = serve(remote_urls=endpoint.url)
    options = {"url": endpoint.url, "batch": 8, "timeout_s": 5}
    body = {"name": "ada", "kind": "openai", "model": "truth", "options": options}
    assert client.post("/encoders", json=body).status_code == 201
    encoding_service.load_model(*row_of(client, "ada"))
    endpoint.done.clear()
    return row_of(client, "ada")


def many(remote, texts, on_encoded=lambda part: None, **options):
    """All parts of a call, in the order of the texts."""
    parts = [EncodedTexts([], torch.empty(0, remote[1].dim), 0, [])]

    def keep(part):
        on_encoded(part)
        parts.append(part)

    encode_many(remote[0], CONTEXT, remote[1], texts, on_encoded=keep, **options)
    places = [place for part in parts for place in part.places]
    order = sorted(range(len(places)), key=places.__getitem__)
    return EncodedTexts(
        sorted(places),
        torch.cat([part.vectors for part in parts])[order],
        sum(part.tokens for part in parts),
        [place for part in parts for place in part.truncated],
    )


def test_requests_are_full_and_run_at_once_up_to_the_concurrency(remote, endpoint):
    endpoint.usage = {"prompt_tokens": 5, "total_tokens": 7}
    begun = threading.Barrier(6)

    def wait_for_others(vector, text):
        if int(text.split()[1]) < 48 and text.split()[1] in {"0", "8", "16", "24", "32", "40"}:
            begun.wait(slack() * 10)
        return vector

    endpoint.drift = wait_for_others
    done = []
    made = many(remote, TEXTS, concurrency=6, on_progress=done.append)
    assert list(made.places) == list(range(100))
    assert torch.equal(made.vectors, expected_vectors(TEXTS))
    assert (made.tokens, list(made.truncated)) == (13 * 5, [])
    assert sorted(endpoint.done) == sorted(TEXTS)
    sizes = [len(body["input"]) for _, _, body in endpoint.seen]
    assert sorted(sizes[-13:]) == [4, *[8] * 12]
    assert done == sorted(done)
    assert done[-1] == 100
    assert endpoint.connections <= 7  # they are kept


def test_bad_texts_are_found_and_no_other_text_is_embedded_twice(remote, endpoint):
    bad = [3, 4, 50, 99]
    endpoint.bad = {TEXTS[place] for place in bad}
    texts = [*TEXTS, "half \ud800 of a pair"]
    made = many(remote, texts)
    kept = [place for place in range(100) if place not in bad]
    assert list(made.places) == kept
    assert torch.equal(made.vectors, expected_vectors([TEXTS[place] for place in kept]))
    assert sorted(endpoint.done) == sorted(TEXTS[place] for place in kept)
    assert made.tokens == count_tokens(*remote, [TEXTS[place] for place in kept])[0]  # no usage
    assert list(many(remote, [TEXTS[3]]).places) == []
    assert list(many(remote, []).places) == []


def test_an_endpoint_that_refuses_every_one_of_many_texts_ends_the_call(remote, endpoint):
    endpoint.bad = set(TEXTS)
    with pytest.raises(InvalidInput, match="rejects these inputs"):
        many(remote, TEXTS)
    assert list(many(remote, TEXTS[:9]).places) == []


@pytest.mark.parametrize("status", [500, 200])
def test_a_text_at_which_an_endpoint_fails_may_be_left_out(remote, endpoint, status, monkeypatch):
    """200: with a vector of another length."""
    monkeypatch.setattr(endpoint_module, "ENDPOINT_BACKOFF_S", 0.01)
    bad = {TEXTS[3], TEXTS[50]}
    if status == 500:
        endpoint.bad, endpoint.bad_status = bad, status
    endpoint.drift = lambda vector, text: vector[:5] if text in bad else vector
    with pytest.raises(EncoderFailed):
        many(remote, TEXTS)
    kept = [place for place in range(100) if TEXTS[place] not in bad]
    made = many(remote, TEXTS, leave_out=True)
    assert list(made.places) == kept
    assert torch.equal(made.vectors, expected_vectors([TEXTS[place] for place in kept]))
    assert list(many(remote, [TEXTS[3]], leave_out=True).places) == []


def test_an_endpoint_that_is_away_leaves_no_text_out(remote, endpoint, monkeypatch):
    """Behind a proxy, wholly, for the time of one request, and in the middle of a call."""
    monkeypatch.setattr(endpoint_module, "ENDPOINT_BACKOFF_S", 0.01)
    endpoint.bad, endpoint.bad_status = {TEXTS[3]}, 503
    with pytest.raises(EncoderFailed, match="status 503"):
        many(remote, TEXTS, leave_out=True)
    endpoint.bad, away = set(), [(500, {}, {})]
    endpoint.refusals, requests = away * 100, len(endpoint.seen)
    with pytest.raises(EncoderFailed, match="status 500"):
        many(remote, TEXTS, leave_out=True)
    assert len(endpoint.seen) - requests <= 4 * 3 + 4 * 3  # of 4 batches and as many new texts
    for count in (1, 40):
        endpoint.refusals = away * 3
        assert list(many(remote, TEXTS[:count], leave_out=True).places) == [*range(count)]

    def go_away(done):
        if done >= 24:
            endpoint.refusals = away * 100

    with pytest.raises(EncoderFailed, match="status 500"):
        many(remote, TEXTS, leave_out=True, on_progress=go_away)


def test_a_pause_that_the_endpoint_asks_for_holds_up_one_request(remote, endpoint):
    endpoint.refusals = [(429, {"Retry-After": "1"}, {})]
    begin, done = time.monotonic(), []
    made = many(remote, TEXTS, on_progress=lambda n: done.append((n, time.monotonic() - begin)))
    assert torch.equal(made.vectors, expected_vectors(TEXTS))
    assert max(count for count, seconds in done if seconds < 1) == 92
    assert sorted(endpoint.done) == sorted(TEXTS)


def test_an_endpoint_that_stays_away_fails_with_its_pause_after_all_answers_came(remote, endpoint):
    texts, kept = list(TEXTS), {}

    def keep(answer):
        kept.update((texts[place], answer.vectors[row]) for row, place in enumerate(answer.places))

    def stay_away(done):
        if done >= 24:
            endpoint.refusals = [(503, {"Retry-After": "40"}, {})] * 100

    with pytest.raises(EncoderFailed, match="status 503") as caught:
        many(remote, texts, on_progress=stay_away, on_encoded=keep)
    assert caught.value.retry_after_s == 40
    assert 24 <= len(kept) < 100
    assert sorted(kept) == sorted(endpoint.done)  # every answer was kept
    requests = len(endpoint.seen)
    endpoint.refusals = []
    left = [text for text in texts if text not in kept]
    many(remote, left)
    assert sorted(endpoint.done) == sorted(TEXTS)  # none twice
    assert len(endpoint.seen) - requests == -(-len(left) // 8)


def test_another_model_is_a_change_and_a_call_that_ends_cancels_its_requests(remote, endpoint):
    stalled, ended = [], []

    def stop(done):
        if stalled:
            raise InterruptedError

    def stall(handler):
        handler.body()
        stalled.append(handler)
        with suppress(OSError):  # closed with bytes unread: a reset
            handler.rfile.read(1)
        ended.append(handler)

    endpoint.behaviour = stall
    with pytest.raises(InterruptedError):
        many(remote, TEXTS, on_progress=stop)
    until(lambda: len(ended) == len(stalled))
    endpoint.behaviour, endpoint.model = None, "truth-2026-02"
    with pytest.raises(EncoderChanged):
        many(remote, TEXTS)


def test_a_model_of_the_service_leaves_out_what_it_cannot_read(encoding):
    pair = row_of(encoding, "toy")
    texts = [*TEXTS, "half \ud800 of a pair", "word " * 99]
    made = many(pair, texts)
    assert list(made.places) == [*range(100), 101]
    alone = encoding_service.encode(pair[0], CONTEXT, pair[1], [texts[101]])
    torch.testing.assert_close(made.vectors[100:], alone.vectors)
    assert list(made.truncated) == [101]
    assert (made.tokens, "tokenizer", 1) == count_tokens(*pair, texts)
    assert list(many(pair, ["\ud800"]).places) == []


def test_tokens_of_an_endpoint_are_estimated(remote, endpoint):
    assert count_tokens(*remote, ["x" * 400, "x" * 40]) == (112, "characters", 0)
    assert endpoint.done == []
