from __future__ import annotations

import asyncio
import copy
import pickle

import numpy as np
import pytest

from anchorage_client import InvalidRequestError, NotFoundError, UnavailableError
from anchorage_client.adapters.encode import Encoder
from anchorage_client.adapters.text_model import TextModel


def test_batches_become_one_matrix_and_copies_and_closed_models_open_a_connection(texts):
    model = TextModel("new", url=texts.url, batch_size=3)
    few = texts.sentences[:8]
    expected = texts.client.embed(few, model="new")
    model.close()
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        np.testing.assert_allclose(each.embed(few, "document"), expected, rtol=0, atol=1e-5)
    first = model.client
    assert model.client is first
    with pytest.raises(NotFoundError):
        TextModel("missing", url=texts.url).embed(few, "document")
    with pytest.raises(ValueError, match="batch_size"):
        TextModel("old", batch_size=0)
    del model
    with pytest.raises((RuntimeError, UnavailableError)):
        first.ready()  # it was closed with its model


def test_rows_of_an_error_count_from_the_first_text(texts):
    wrong = ["a", "b", "c", "x" * 40_000, "d"]
    model = TextModel("new", url=texts.url, batch_size=2)
    for call in (
        lambda: model.embed(wrong, "document"),
        lambda: asyncio.run(model.aembed(wrong, "document")),
        lambda: Encoder("new", url=texts.url, batch_size=2).encode(wrong),
    ):
        with pytest.raises(InvalidRequestError) as found:
            call()
        assert found.value.rows == [3]


def test_the_key_comes_from_the_environment_unless_one_is_passed(monkeypatch):
    monkeypatch.setenv("ANCHORAGE_API_KEY", "anc_environment")
    for options, key in (
        ({}, "Bearer anc_environment"),
        ({"api_key": "anc_own"}, "Bearer anc_own"),
        ({"api_key": ""}, None),
        ({"api_key_env": None}, None),
    ):
        model = TextModel("old", **options)
        assert model.client._transport.http.headers.get("Authorization") == key
        assert b"anc_environment" not in pickle.dumps(model)
