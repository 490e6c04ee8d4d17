"""Classifiers of scikit-learn become heads, on the 77 intents of Banking77."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anchorage_client import Client
from anchorage_client.linear_layer import linear_layer
from app.demo.pack import Pack, load_pack

pytest.importorskip("sklearn")

from sklearn import decomposition, ensemble, svm
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

LINEAR: dict[str, Any] = {
    "logistic": LogisticRegression(C=10),
    "svc": svm.LinearSVC(),
    "normalised": make_pipeline(Normalizer(), StandardScaler(), svm.LinearSVC(C=0.1)),
    "projected": make_pipeline(decomposition.PCA(16), LinearDiscriminantAnalysis()),
    "searched": GridSearchCV(RidgeClassifier(), {"alpha": [1.0, 3.0]}, cv=2),
}
OTHERS: dict[str, Any] = {
    "forest": ensemble.RandomForestClassifier(3),
    "one against one": svm.SVC(kernel="linear"),
    "normalised late": make_pipeline(StandardScaler(), Normalizer(), RidgeClassifier()),
    "several labels": OneVsRestClassifier(RidgeClassifier()),
}


@pytest.fixture(scope="module")
def pack() -> Pack:
    return load_pack()


def rows_of(pack: Pack, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the old encoder with the names of their intents, of the first `classes`."""
    names = np.asarray(pack.classes)[pack.labels.numpy()]
    chosen = pack.labels.numpy() < classes
    return pack.old.numpy()[chosen] * 3.0, names[chosen]


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("kind", LINEAR)
def test_a_linear_layer_predicts_as_its_classifier(pack, kind: str, classes: int):
    vectors, names = rows_of(pack, classes)
    classifier = LINEAR[kind].fit(vectors[::2], names[::2])
    layer = linear_layer(classifier)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    assert layer.scale == (1.0 if kind == "normalised" else None)
    logits = (vectors / norms if layer.scale else vectors) @ layer.weight.T + layer.bias
    assert np.asarray(layer.classes)[logits.argmax(axis=1)].tolist() == (
        classifier.predict(vectors).tolist()
    )


@pytest.mark.parametrize("kind", OTHERS)
def test_another_classifier_is_refused_with_what_to_do(pack, kind: str):
    vectors, names = rows_of(pack, 3)
    if kind == "several labels":
        names = np.stack([names == name for name in sorted(set(names))], axis=1).astype(int)
    with pytest.raises(TypeError, match="is not linear: "):
        linear_layer(OTHERS[kind].fit(vectors, names))
    with pytest.raises(TypeError, match="LogisticRegression is not fitted"):
        linear_layer(LogisticRegression())


def test_a_classifier_survives_its_encoder(client: Client, pack: Pack):
    old, new = pack.old.numpy(), pack.vectors["minilm6-384"].numpy()
    names = pack.labels.numpy()  # whole numbers stay such
    classifier = LogisticRegression(C=10).fit(old[pack.index], names[pack.index])
    for name, rows in (("use", old), ("minilm", new)):
        client.encoders.create(name, dim=rows.shape[1])
    anchors = {"use": old[pack.anchors], "minilm": new[pack.anchors]}
    client.anchor_sets.create("sentences", embeddings=anchors)

    head = client.heads.from_sklearn("intents", classifier, encoder="use")
    queries = {"use": old[pack.queries], "minilm": new[pack.queries]}
    native = client.stitch(queries["use"], encoder="use", head="intents")
    stitched = client.stitch(
        queries["minilm"], encoder="minilm", head="intents", anchor_set="sentences"
    )
    assert head["classes"] == classifier.classes_.tolist()
    assert native.labels == classifier.predict(queries["use"]).tolist()
    np.testing.assert_allclose(native.scores, classifier.predict_proba(queries["use"]), atol=1e-5)
    share, kept = (
        np.mean(found == names[pack.queries])
        for found in (classifier.predict(queries["use"]), np.asarray(stitched.labels))
    )
    assert kept > share - 0.05  # 0.84 of 77 intents by either encoder
