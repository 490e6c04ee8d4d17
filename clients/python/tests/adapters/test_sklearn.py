from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from anchorage_client.adapters.sklearn import AnchorageTranslator, AnchorageVectorizer


def test_transform_equals_the_service_and_needs_it_no_more(texts):
    old = texts.client.embed(texts.sentences[:30], model="old")
    translator = AnchorageTranslator("old", "new", "faq", method="irp", url=texts.url).fit(old)
    expected = texts.client.translate(old, **texts.pair, method="irp").vectors
    again = pickle.loads(pickle.dumps(translator))  # noqa: S301
    again.url = "http://127.0.0.1:9"
    for each in (translator, again):
        np.testing.assert_allclose(each.transform(old), expected, rtol=0, atol=1e-5)
    assert len(translator.get_feature_names_out()) == 384
    assert translator.set_output(transform="pandas").transform(old).shape == (30, 384)
    with pytest.raises(ValueError, match="expecting 256 features"):
        again.transform(old[:, :100])
    with pytest.raises(ValueError, match="vectors of 'old' have 256"):
        clone(translator).fit(old[:, :100])
    with pytest.raises(NotFittedError):
        clone(translator).transform(old)


def test_one_column_of_a_frame_or_an_array_is_texts(texts):
    few = texts.sentences[:10]
    vectorizer = AnchorageVectorizer("old", url=texts.url)
    expected = texts.client.embed(few, model="old")
    frame = pd.DataFrame({"text": few, "size": range(10)})
    for column in (frame[["text"]], frame["text"], np.array(few)[:, None]):
        np.testing.assert_allclose(vectorizer.transform(column), expected, rtol=0, atol=1e-5)


def test_items_that_are_no_texts_are_refused():
    for wrong, kind in (
        ("text", "one string"),
        ({"text": ["a"]}, "a mapping"),
        (pd.DataFrame({"a": ["b"], "c": ["d"]}), "has 2 columns"),
        (pd.DataFrame({"a": ["b", None]}), "has"),
        ([["text"]], "has list"),
        (["a", None], "has NoneType"),
    ):
        with pytest.raises(TypeError, match=kind):
            AnchorageVectorizer("old").transform(wrong)
