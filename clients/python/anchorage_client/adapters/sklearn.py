"""scikit-learn: transformers of texts and of vectors, for pipelines. Needs scikit-learn.

Estimators print and pickle their parameters, so the API key is not one: the parameter names the
variable of the environment that holds it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from anchorage_client import Client, LocalTranslator
from anchorage_client.adapters.text_model import BATCH_SIZE, KEY_VARIABLE, URL, TextModel
from anchorage_client.fields import Role
from anchorage_client.vectors import Float32s


class AnchorageVectorizer(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Texts to vectors by a model of the service. There is nothing to fit.

    model        an encoder, `encoder->target@anchor-set`, or a name of one or of a store
    role         `query` or `document`
    batch_size   most texts of one request
    timeout      seconds for one request
    api_key_env  variable of the environment that holds the API key, if the service needs one
    """

    def __init__(
        self,
        model: str,
        *,
        url: str = URL,
        role: Role = "document",
        batch_size: int = BATCH_SIZE,
        timeout: float = 60.0,
        api_key_env: str = KEY_VARIABLE,
    ) -> None:
        self.model = model
        self.url = url
        self.role = role
        self.batch_size = batch_size
        self.timeout = timeout
        self.api_key_env = api_key_env

    def fit(self, X: Iterable[str], y: Any = None) -> AnchorageVectorizer:
        """Return the transformer itself."""
        return self

    def transform(self, X: Iterable[str]) -> Float32s:
        """Return the vectors (n, d) of texts; a frame or an array may have one column.

        Raises TypeError for several columns, and for items that are not strings.
        """
        texts = _texts_of(X)
        vectors = self._embed(texts) if texts else np.empty((0, self._n_features_out), np.float32)
        self._dim = (self.model, self.url), vectors.shape[1]
        return vectors

    @property
    def _n_features_out(self) -> int:
        # There is nothing to fit, so a first call here embeds one text.
        names = self.model, self.url
        known, dim = getattr(self, "_dim", (None, 0))
        if known != names:
            dim = self._embed(["dimension"]).shape[1]
            self._dim = names, dim
        return int(dim)

    def _embed(self, texts: list[str]) -> Float32s:
        connection = TextModel(
            self.model,
            url=self.url,
            api_key_env=self.api_key_env,
            batch_size=self.batch_size,
            timeout=self.timeout,
        )
        try:
            return connection.embed(texts, self.role)
        finally:
            connection.close()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags


class AnchorageTranslator(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Vectors of one encoder to vectors of another. `fit` downloads the translator.

    source, target, anchor_set  names in the service
    method                      a method of the service; None: the service chooses
    timeout                     seconds for one request
    api_key_env                 as of `AnchorageVectorizer`

    After `fit`, `translator_` multiplies in this process, and `transform` and pickles need no
    service.
    """

    def __init__(
        self,
        source: str,
        target: str,
        anchor_set: str,
        *,
        method: str | None = None,
        url: str = URL,
        timeout: float = 60.0,
        api_key_env: str = KEY_VARIABLE,
    ) -> None:
        self.source = source
        self.target = target
        self.anchor_set = anchor_set
        self.method = method
        self.url = url
        self.timeout = timeout
        self.api_key_env = api_key_env

    def fit(self, X: Any, y: Any = None) -> AnchorageTranslator:
        """Fit or find the translator in the service. X (n, d) only tells the dimension.

        Raises ValueError if it is not the source's, and the errors of the client.
        """
        validate_data(self, X, dtype=[np.float32, np.float64])
        key = os.environ.get(self.api_key_env) or None
        with Client(self.url, api_key=key, timeout=self.timeout) as client:
            self.translator_: LocalTranslator = client.translator(
                source=self.source,
                target=self.target,
                anchor_set=self.anchor_set,
                method=self.method,
            ).download()
        dim, self._n_features_out = self.translator_.dims
        if self.n_features_in_ != dim:
            raise ValueError(
                f"`X` has {self.n_features_in_} columns, and vectors of {self.source!r} have {dim}."
            )
        return self

    def transform(self, X: Any) -> Float32s:
        """Return the translations (n, d_target) of X (n, d_source), computed in this process."""
        check_is_fitted(self, "translator_")
        rows = validate_data(self, X, dtype=[np.float32, np.float64], reset=False)
        return self.translator_.apply(rows).vectors


def _texts_of(X: Any) -> list[str]:
    rule = "`X` must be a list or column of strings, and this"
    if isinstance(X, str):
        raise TypeError(f"{rule} is one string.")
    if isinstance(X, Mapping):
        raise TypeError(f"{rule} is a mapping.")
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) == 2:
        if shape[1] != 1:
            raise TypeError(f"{rule} has {shape[1]} columns. Select one.")
        X = np.asarray(X, dtype=object).reshape(-1)
    texts = list(X)
    others = {type(each).__name__ for each in texts if not isinstance(each, str)}
    if others:
        raise TypeError(f"{rule} has {', '.join(sorted(others))}.")
    return texts
