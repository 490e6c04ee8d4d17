"""Loading, identity, batches and prompts of a remote encoder."""

from __future__ import annotations

import gc

import pytest
import torch

from app.errors import EncoderFailed, EncoderUnavailable, InvalidInput
from app.types import InputRole, Modality
from tests.encoders.models.remote.endpoints import (
    DIM,
    DOCUMENT,
    TEXTS,
    embed,
    expected_vectors,
    load,
)


@pytest.mark.parametrize("as_list", [False, True], ids=["base64", "list"])
def test_vectors_equal_the_endpoints(endpoint, as_list):
    endpoint.as_list = as_list
    model = load(endpoint.url)
    vectors = embed(model, TEXTS)
    assert (vectors.dtype, model.dim, model.remote, model.nbytes, model.modality) == (
        torch.float32,
        DIM,
        True,
        0,
        Modality.text,
    )
    assert torch.equal(vectors, expected_vectors(TEXTS))
    assert model.run([]).shape == (0, DIM)


def test_an_endpoint_that_rejects_base64_gets_requests_for_numbers(endpoint):
    endpoint.refuses_base64 = True
    assert torch.equal(embed(load(endpoint.url), TEXTS), expected_vectors(TEXTS))
    assert [body["encoding_format"] for _, _, body in endpoint.seen] == ["base64", "float", "float"]


def test_items_are_sent_in_pieces_over_one_connection(endpoint):
    texts = [f"text {number}" for number in range(10)]
    model = load(endpoint.url, batch=4)
    assert torch.equal(embed(model, texts), expected_vectors(texts))
    assert [len(body["input"]) for _, _, body in endpoint.seen] == [1, 4, 4, 2]
    assert endpoint.connections == 1


def test_pieces_are_as_large_as_tei_takes_by_default(endpoint):
    embed(load(endpoint.url), ["x"] * 65)
    assert [len(body["input"]) for _, _, body in endpoint.seen] == [1, 32, 32, 1]


def test_an_unloaded_model_closes_its_connections(endpoint):
    model = load(endpoint.url)
    pool = model._endpoint._pool
    assert len(pool.connections) == 1
    del model
    gc.collect()
    assert pool.connections == []


def test_prompts_stand_before_the_text_of_their_role(endpoint):
    model = load(endpoint.url, prompts={"query": "query: "})
    assert torch.equal(
        model.run(model.prepare(["a"], InputRole.query)), expected_vectors(["query: a"])
    )
    assert torch.equal(model.run(model.prepare(["a"], DOCUMENT)), expected_vectors(["a"]))
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


def test_unit_vectors_of_an_endpoint_are_detected(endpoint):
    endpoint.refusals = [(200, {}, {"data": [{"index": 0, "embedding": [0.6, -0.8]}]})]
    assert load(endpoint.url).identity.normalise is True


@pytest.mark.parametrize(
    ("model", "revision"),
    [("truth-2026-01", "truth-2026-01"), (None, "r1"), ("\x1b[31m", "r1")],
)
def test_the_revision_comes_from_the_endpoint(endpoint, model, revision):
    endpoint.model = model
    identity = load(endpoint.url).identity
    assert (identity.model, identity.revision, identity.dim) == (
        f"truth at {endpoint.url}",
        revision,
        DIM,
    )
    assert (identity.pooling, identity.dtype) == (None, None)


def test_another_model_at_the_endpoint_is_an_error(endpoint):
    model = load(endpoint.url)
    endpoint.model = "truth-2026-02"
    with pytest.raises(EncoderFailed, match="another model"):
        embed(model, TEXTS)


@pytest.mark.parametrize(
    ("inputs", "rows"), [(["a", b"\x89PNG", b""], [1, 2]), (["\ud800", "fine", "x\udfff"], [0, 2])]
)
def test_images_and_invalid_unicode_are_rejected_by_row(endpoint, inputs, rows):
    with pytest.raises(InvalidInput) as caught:
        load(endpoint.url).prepare(inputs, DOCUMENT)
    assert (caught.value.rows, caught.value.field) == (rows, "inputs")
