"""Remote encoders: loading, identity, prompts, answers without valid vectors, and allowed URLs."""

from __future__ import annotations

import gc
import json

import pytest
import torch
from pydantic import ValidationError

from app.encoders.models.base import EncoderSpec
from app.encoders.models.options import RemoteOptions
from app.encoders.models.remote.encoder import load as load_encoder
from app.encoders.models.remote.encoder import read_answer
from app.errors import EncoderChanged, EncoderFailed, EncoderUnavailable
from app.types import InputRole
from tests.encoders.models.remote.endpoints import (
    DIM,
    TEXTS,
    VECTOR,
    allow_url,
    embed,
    expected_vectors,
    load,
)
from tests.waiting import until


def test_vectors_equal_the_endpoints_over_one_connection(endpoint):
    model = load(endpoint.url)
    for texts in (TEXTS, ["long " * 2**18], TEXTS):
        assert torch.equal(embed(model, texts), expected_vectors(texts))
    assert endpoint.connections == 1
    assert (model.dim, model.endpoint, model.batch) == (DIM, endpoint.url, 32)


@pytest.mark.parametrize("kind", ["ignored", "refused"])
def test_an_endpoint_without_base64_answers_numbers(endpoint, kind):
    endpoint.base64 = kind
    assert torch.equal(embed(load(endpoint.url), TEXTS), expected_vectors(TEXTS))
    formats = [body["encoding_format"] for _, _, body in endpoint.seen]
    assert formats == (["base64"] * 2 if kind == "ignored" else ["base64", "float", "float"])


def test_an_unloaded_model_closes_its_connections(endpoint):
    model = load(endpoint.url)
    [session] = model._endpoint._sessions.values()
    assert not session.closed
    del model
    gc.collect()
    until(lambda: session.closed)


def test_prompts_stand_before_the_text_of_their_role(endpoint):
    model = load(endpoint.url, prompts={"query": "query: "})
    assert torch.equal(embed(model, ["a"], role=InputRole.query), expected_vectors(["query: a"]))
    assert torch.equal(embed(model, ["a"]), expected_vectors(["a"]))
    assert model.identity.prompts == {"query": "query: "}


def test_dimensions_are_requested_and_checked(endpoint):
    assert torch.equal(embed(load(endpoint.url, dim=7), TEXTS), expected_vectors(TEXTS, 7))
    endpoint.refusals = [(200, {}, {"data": [{"index": 0, "embedding": [1.0, 2.0]}], "model": "m"})]
    with pytest.raises(EncoderUnavailable, match="vectors of 2 dimensions, not 7") as caught:
        load(endpoint.url, dim=7)
    assert caught.value.field == "options.dim"


def test_normalise_gives_unit_vectors_of_the_same_direction(endpoint):
    model = load(endpoint.url, normalise=True)
    torch.testing.assert_close(
        embed(model, TEXTS), torch.nn.functional.normalize(expected_vectors(TEXTS))
    )
    assert model.identity.normalise is True
    assert load(endpoint.url).identity.normalise is False
    endpoint.refusals = [(200, {}, {"data": [{"index": 0, "embedding": [0.6, -0.8]}]})]
    assert load(endpoint.url).identity.normalise is True  # unit vectors are detected


@pytest.mark.parametrize(
    ("model", "revision"),
    [("truth-2026-01", "truth-2026-01"), (None, "r1"), ("\x1b[31m", "r1")],
)
def test_the_revision_comes_from_the_endpoint(endpoint, model, revision):
    endpoint.model = model
    identity = load(endpoint.url).identity
    assert (identity.model, identity.revision) == (f"truth at {endpoint.url}", revision)


def test_another_model_at_the_endpoint_is_a_change_that_no_retry_mends(endpoint):
    model = load(endpoint.url)
    endpoint.model = "truth-2026-02"
    with pytest.raises(EncoderChanged, match="another model") as caught:
        embed(model, TEXTS)
    assert caught.value.field == "encoder"


# Answers


def answer(*embeddings):
    return {"data": [{"index": i, "embedding": each} for i, each in enumerate(embeddings)]}


def numbered(*indices):
    return {"data": [{"index": index, "embedding": VECTOR} for index in indices]}


ANSWERS = [
    {"data": None},
    answer(VECTOR),
    numbered(0, 0),
    numbered(1, 2),
    {"data": [{"embedding": VECTOR}, *numbered(0)["data"]]},
    numbered(False, True),
    answer(VECTOR, VECTOR[:-1]),
    answer(*[[1.0] * 8193] * 2),
    answer(VECTOR, ["1"] * DIM),
    answer(VECTOR, [1e300] * DIM),
    answer(VECTOR, [1.3e30] * DIM),
    answer("AAAA", "AAAA"),  # 3 bytes
    answer("AACAfw==", "AACAfw=="),  # infinity
    answer("ä", "*"),
]
BODIES = [*(json.dumps(each).encode() for each in ANSWERS), b"", b'{"data": [{"index": 0,']
BODIES += [b"[" * 100_000 + b"]" * 100_000, b"NaN", b"1e999"]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[:40])
def test_an_invalid_answer_is_refused(body):
    with pytest.raises(EncoderFailed, match="endpoint") as caught:
        read_answer(body, 2)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("left_out", [[0], [0, 1, 2]])
def test_an_item_without_an_index_belongs_to_the_input_at_its_place(left_out):
    rows = answer([1.0], [2.0], [3.0])
    for place in left_out:
        del rows["data"][place]["index"]
    assert read_answer(json.dumps(rows).encode(), 3)[0].flatten().tolist() == [1.0, 2.0, 3.0]


# URLs


LISTED = "http://127.0.0.1:8080/base"
ELSEWHERE = [
    ("/base", path) for path in ("", "/base/more", "/base/../base", "/base//x", "/BASE", "/%62ase")
]
ELSEWHERE += [("127.0.0.1", host) for host in ("localhost", "127.1", "169.254.169.254")]
ELSEWHERE += [("http:", "https:")]


@pytest.mark.parametrize(("part", "other"), ELSEWHERE)
def test_a_url_that_the_operator_does_not_list_is_refused(part, other):
    spec = EncoderSpec("openai", "truth", None, {"url": (asked := LISTED.replace(part, other))})
    with pytest.raises(EncoderUnavailable, match="ANCHORAGE_REMOTE_URLS") as caught:
        load_encoder(spec, allow_url(LISTED), "cpu")
    assert caught.value.field == "options.url"
    assert LISTED not in caught.value.detail.replace(asked, "")


NO_URLS = [
    *("", "ftp://host/v1", "file:///etc/passwd", "//host/v1", "http:/host", "http://"),
    *("http://user:secret@host/v1", "http://user@host/v1", "http://host /v1", "http://ho\tst/v1"),
    *("http://host\\@other/v1", "http://höst/v1", "http://host/v1\n", "http://host/v1?x=1"),
    *("http://host/v1?", "http://host/v1#x", "http://host:0/v1", "http://host:65536/v1"),
    *("http://host:٨٠/v1", f"http://host:{'9' * 20}/v1"),
]


@pytest.mark.parametrize("url", NO_URLS)
def test_an_invalid_url_is_rejected_and_not_quoted(url):
    with pytest.raises(ValidationError) as caught:
        RemoteOptions.model_validate({"url": url})
    [error] = caught.value.errors()
    assert error["loc"] == ("url",)
    assert "secret" not in error["msg"]


SAME = {
    "HTTP://Host.Example:80/V1//": "http://host.example/V1",
    "https://host:443": "https://host",
    "http://host:0080/a/b": "http://host/a/b",
    "http://[::1]:8080/v1/": "http://[::1]:8080/v1",
}


@pytest.mark.parametrize("url", SAME)
def test_equal_urls_have_one_normal_form(url):
    for each in (url, SAME[url]):
        assert RemoteOptions.model_validate({"url": each}).url == SAME[url]
