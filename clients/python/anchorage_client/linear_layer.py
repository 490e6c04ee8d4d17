"""A fitted classifier of scikit-learn as one linear layer, found without importing scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: random unit vectors that compare the layer with the classifier, a further length of theirs, and
#: the largest relative difference of the two, which allows for weights in float32
PROBES, FAR, TOLERANCE = 64, 30.0, 1e-4

ADVICE = (
    "A head is one linear layer: pass a fitted LogisticRegression, LinearSVC, RidgeClassifier or "
    "SGDClassifier, or a pipeline that ends with one, after scalers, a PCA or one Normalizer "
    "that comes first. Register another model by `heads.create`: `architecture` or `kind='onnx'`."
)


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """logits = x weight^T + bias, of x scaled to the norm `scale`; None: of x as it is."""

    classes: list[str | int]
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    scale: float | None


def linear_layer(classifier: Any) -> LinearLayer:
    """Return the layer that predicts as a fitted classifier, or a pipeline of vectors, does.

    The classifier's values at the unit vectors give weight and bias, so that scalers and
    projections of a pipeline are part of them. Raises TypeError for what is no such layer.
    """
    steps = getattr(classifier, "steps", None)  # of a pipeline, whose last one classifies
    name = type(steps[-1][1] if steps else classifier).__name__
    if hasattr(classifier, "classes_") and not hasattr(classifier, "decision_function"):
        raise TypeError(f"{name} is not linear: it has no `decision_function`. {ADVICE}")
    for member in ("decision_function", "predict", "classes_", "n_features_in_"):
        if not hasattr(classifier, member):
            raise TypeError(
                f"{name} is not fitted, reads no vectors, or is no classifier: it has no "
                f"`{member}`. {ADVICE}"
            )
    dim, classes = int(classifier.n_features_in_), np.asarray(classifier.classes_).tolist()
    above, below = (_values(classifier, sign * np.eye(dim)) for sign in (1.0, -1.0))
    weight, bias = (above - below).T / 2, (above + below).mean(axis=0) / 2
    probes = np.random.default_rng(0).normal(size=(PROBES, dim))
    probes /= np.linalg.norm(probes, axis=1, keepdims=True)
    near, far = _values(classifier, probes), _values(classifier, FAR * probes)
    expected = probes @ weight.T + bias
    straight = _same(far, FAR * probes @ weight.T + bias)
    scaled = _same(far, expected)  # a pipeline that normalises its input
    predicted = np.asarray(classifier.predict(probes))
    if (
        len(classes) != expected.shape[1]
        or not _same(near, expected)
        or not (straight or scaled)
        or predicted.shape != (PROBES,)
        or list(predicted) != [classes[place] for place in expected.argmax(axis=1)]
    ):
        raise TypeError(f"{name} is not linear: no linear layer predicts as it does. {ADVICE}")
    names = [each if type(each) in (str, int) else str(each) for each in classes]
    return LinearLayer(names, weight, bias, None if straight else 1.0)


def _values(classifier: Any, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a value of each row for each class; of two classes, the first one's is 0."""
    values = np.asarray(classifier.decision_function(rows), np.float64)
    if values.ndim == 1:
        values = np.stack([np.zeros_like(values), values], axis=1)
    return values


def _same(values: NDArray[np.float64], expected: NDArray[np.float64]) -> bool:
    limit = TOLERANCE * float(np.abs(values).max(initial=1e-30))
    return values.shape == expected.shape and bool(np.all(np.abs(values - expected) <= limit))
