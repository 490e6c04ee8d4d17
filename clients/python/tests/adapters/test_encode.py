from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from anchorage_client.adapters.encode import Encoder
from app.encoders.torchvision_ops import make_importable


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


def test_vectors_are_normalised_on_request(texts):
    encoder = Encoder("old", url=texts.url)
    plain = encoder.encode(texts.sentences[:5])
    unit = encoder.encode(texts.sentences[:5], normalize_embeddings=True)
    assert np.abs(np.linalg.norm(plain, axis=1) - 1).max() > 0.01
    np.testing.assert_allclose(
        unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), rtol=0, atol=1e-5
    )
    zero = Encoder("old", url=texts.url)
    zero._texts.embed = lambda texts, role: np.zeros((len(texts), 3), np.float32)
    assert not zero.encode(["a"], normalize_embeddings=True).any()


def test_code_for_sentence_transformers_runs_with_it(texts):
    make_importable()
    util = pytest.importorskip("sentence_transformers.util")
    some = texts.sentences[:40]
    corpus = Encoder("old", url=texts.url).encode(some, convert_to_tensor=True)
    queries = Encoder(texts.translated, url=texts.url).encode(some, convert_to_tensor=True)
    hits = util.semantic_search(queries, corpus, top_k=3)
    found = [row in {hit["corpus_id"] for hit in each} for row, each in enumerate(hits)]
    assert np.mean(found) > 0.9
