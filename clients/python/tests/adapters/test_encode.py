from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from anchorage_client.adapters.encode import Encoder


def test_one_string_is_a_vector_and_a_list_is_a_matrix(texts):
    encoder = Encoder("new", url=texts.url)
    few = texts.sentences[:7]
    expected = texts.client.embed(few, model="new")
    for found in (encoder.encode(few), encoder.encode(few, batch_size=2, show_progress_bar=True)):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert encoder.encode(few[0]).shape == (384,)
    assert encoder.encode([]).shape == (0, 384)
    assert encoder.get_sentence_embedding_dimension() == 384
    tensor = encoder.encode(few[0], convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor, expected[0], rtol=0, atol=1e-5)


def test_queries_have_their_prompt(texts):
    encoder = Encoder("new", url=texts.url)
    query = texts.client.embed("Where is my card?", model="new", role="query")[0]
    np.testing.assert_allclose(encoder.encode_query("Where is my card?"), query, atol=1e-5)
    as_query = pickle.loads(pickle.dumps(Encoder("new", url=texts.url, role="query")))  # noqa: S301
    np.testing.assert_allclose(as_query.encode("Where is my card?"), query, atol=1e-5)
    document = as_query.encode_document("Where is my card?")
    assert np.abs(document - query).max() > 1e-3


def test_vectors_are_normalised_on_request():
    encoder, rows = Encoder("old"), np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    encoder._texts.embed = lambda texts, role: rows[: len(texts)]
    np.testing.assert_array_equal(encoder.encode(["a", "b"]), rows)
    unit = encoder.encode(["a", "b"], normalize_embeddings=True)
    np.testing.assert_allclose(unit, [[0.6, 0.8], [0, 0]], rtol=0, atol=1e-6)


def test_options_of_sentence_transformers_are_kept_or_refused(texts):
    encoder = Encoder("new", url=texts.url, batch_size=3)
    few = texts.sentences[:4]
    asked = encoder.encode(few, prompt_name="query", precision="float32", device="cpu")
    np.testing.assert_allclose(asked, encoder.encode_query(few, prompt=None), atol=1e-5)
    rows = encoder.encode(few, convert_to_numpy=False, output_value="sentence_embedding")
    assert [tuple(row.shape) for row in rows] == [(384,)] * 4
    cosines = encoder.similarity(rows, asked)
    np.testing.assert_allclose(cosines, encoder.similarity(np.stack(rows), torch.tensor(asked)))
    assert encoder.similarity(asked[0], asked).shape == (1, 4)
    np.testing.assert_allclose(encoder.similarity(3 * asked, asked).diagonal(), 1, atol=1e-5)
    for name, value in (
        ("batch_size", 0),
        ("prompt_name", "passage"),
        ("prompt", "passage: "),
        ("precision", "int8"),
        ("output_value", "token_embeddings"),
        ("truncate_dim", 64),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            encoder.encode(few, **{name: value})
    with pytest.raises(TypeError, match="no parameter 'bogus'"):
        encoder.encode(few, bogus=1)
