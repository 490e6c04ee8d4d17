"""Loading, identity, batches and prompts of a remote encoder."""

from __future__ import annotations

import gc

import pytest
import torch

from app.errors import EncoderChanged, EncoderUnavailable
from app.types import InputRole, Modality
from tests.encoders.models.remote.endpoints import (
    DIM,
    TEXTS,
    embed,
    expected_vectors,
    load,
)
from tests.waiting import until


@pytest.mark.parametrize("as_list", [False, True], ids=["base64", "list"])
def test_vectors_equal_the_endpoints(endpoint, as_list):
    endpoint.as_list = as_list
    model = load(endpoint.url)
    vectors = embed(model, TEXTS)
    assert (vectors.dtype, model.dim, model.endpoint, model.nbytes, model.modality) == (
        torch.float32,
        DIM,
        endpoint.url,
        0,
        Modality.text,
    )
    assert torch.equal(vectors, expected_vectors(TEXTS))


def test_an_endpoint_that_rejects_base64_gets_requests_for_numbers(endpoint):
    endpoint.refuses_base64 = True
    assert torch.equal(embed(load(endpoint.url), TEXTS), expected_vectors(TEXTS))
    assert [body["encoding_format"] for _, _, body in endpoint.seen] == ["base64", "float", "float"]


def test_a_model_asks_over_one_connection_for_as_many_inputs_as_tei_takes(endpoint):
    model = load(endpoint.url)
    for _ in range(3):
        assert torch.equal(embed(model, TEXTS), expected_vectors(TEXTS))
    assert endpoint.connections == 1
    assert (model.batch, load(endpoint.url, batch=4).batch) == (32, 4)


def test_an_unloaded_model_closes_its_connections(endpoint):
    model = load(endpoint.url)
    pool = model._endpoint._pool
    assert len(pool.connections) == 1
    del model
    gc.collect()
    until(lambda: pool.connections == [])


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
    assert (identity.model, identity.revision, identity.dim) == (
        f"truth at {endpoint.url}",
        revision,
        DIM,
    )
    assert (identity.pooling, identity.dtype) == (None, None)


def test_another_model_at_the_endpoint_is_a_change_that_no_retry_mends(endpoint):
    model = load(endpoint.url)
    endpoint.model = "truth-2026-02"
    with pytest.raises(EncoderChanged, match="another model") as caught:
        embed(model, TEXTS)
    assert caught.value.field == "encoder"
