"""/console/try: texts and vectors, what they find, and mistakes at their fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import urlencode
from uuid import uuid4

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.api.conftest import TEXTS, Encoding
from tests.console.test_overview import stock

FORM = {"content-type": "application/x-www-form-urlencoded"}
PAIR = {"anchor_set": "items", "source": "first", "target": "second"}


def send(client: TestClient, **fields: str) -> tuple[int, str]:
    answer = client.post("/console/try", content=urlencode({**PAIR, **fields}), headers=FORM)
    return answer.status_code, answer.text


def found_rows(page: str) -> list[list[int]]:
    """The rows of each list on the page."""
    return [
        [int(row) for row in re.findall(r"<td>Row (\d+)", table)]
        for table in re.findall(r'<table class="found">(.*?)</table>', page, re.DOTALL)
    ]


def mistake_at(page: str, field: str) -> str:
    found = re.search(rf'id="{field}-mistake"[^>]*>([^<]*)<', page)
    assert found, page
    return found[1]


@pytest.fixture
def vectors(client: TestClient) -> dict[str, np.ndarray]:
    return stock(client)


def test_both_lists_are_the_nearest_anchors_by_cosine(
    client: TestClient, vectors: dict[str, np.ndarray]
) -> None:
    generator = np.random.default_rng(1)
    source, native = generator.normal(size=8), generator.normal(size=6)
    status, page = send(client, vector=json.dumps(source.tolist()), native=str(native.tolist()))
    assert status == 200
    translated = client.post(
        "/translate", json={**PAIR, "vectors": [source.tolist()], "confidence": True}
    ).json()
    anchors = vectors["second"] / np.linalg.norm(vectors["second"], axis=1, keepdims=True)
    expected = [
        np.argsort(-anchors @ np.array(vector))[:10].tolist()
        for vector in (native, translated["vectors"][0])
    ]
    assert found_rows(page) == expected
    shared = set(expected[0]) & set(expected[1])
    assert f"{len(shared)} of 10" in page
    assert page.count("in both</span>") == 2 * len(shared)
    assert f">{translated['confidence']['cosine'][0]:.3f}<" in page
    assert f"/console/pairs/{translated['translator']}" in page


def test_without_a_native_vector_there_is_one_list(
    client: TestClient, vectors: dict[str, np.ndarray]
) -> None:
    status, page = send(client, vector=json.dumps([vectors["first"][4].tolist()]))
    assert status == 200
    [rows] = found_rows(page)
    assert rows[0] == 4
    assert "There is no native vector to compare with" in page


def test_flags_are_explained(client: TestClient, vectors: dict[str, np.ndarray]) -> None:
    mean = vectors["first"].astype(np.float32).astype(float).mean(axis=0)
    _, page = send(client, vector=json.dumps(mean.tolist()))
    assert "equals the anchors&#39; mean" in page


def test_few_anchors_give_no_confidence_and_the_page_says_why(client: TestClient) -> None:
    rows = stock(client, rows=8)["first"]
    _, page = send(client, vector=json.dumps(rows[0].tolist()))
    assert "needs at least" in page


@pytest.mark.parametrize(
    ("field", "text", "status", "message"),
    [
        ("vector", "[1, 2]", 422, "8"),
        ("vector", "[1, 2, NaN]", 400, "This is not a JSON list of numbers"),
        ("vector", "[1e39, 0, 0, 0, 0, 0, 0, 0]", 422, "magnitude"),
        ("vector", '["a", 0, 0, 0, 0, 0, 0, 0]', 422, "number"),
        ("vector", "[]", 422, ""),
        ("vector", "7", 422, "Expected a list of numbers"),
        ("vector", "[[1, 2], [3, 4]]", 422, "number"),
        ("text", "hello", 422, "cannot encode"),
    ],
)
def test_a_mistake_is_shown_at_its_field_and_what_was_typed_stays(
    client: TestClient,
    vectors: dict[str, np.ndarray],
    field: str,
    text: str,
    status: int,
    message: str,
) -> None:
    answered, page = send(client, **{field: text})
    assert answered == status
    assert message in mistake_at(page, field)
    assert text.replace('"', "&#34;") in page


def test_a_wrong_native_vector_is_shown_at_its_field(
    client: TestClient, vectors: dict[str, np.ndarray]
) -> None:
    source = json.dumps(vectors["first"][0].tolist())
    status, page = send(client, vector=source, native="[1]")
    assert status == 422
    assert "6" in mistake_at(page, "native")
    assert "<details open>" in page


def test_a_text_and_a_vector_together_are_refused(
    client: TestClient, vectors: dict[str, np.ndarray]
) -> None:
    for fields, mistake in (
        ({}, "Enter a text or a vector."),
        ({"text": "a", "vector": "[1]"}, "not both"),
    ):
        status, page = send(client, **fields)
        assert status == 422
        assert mistake in mistake_at(page, "text")


def test_unknown_names_and_huge_forms_are_refused(
    client: TestClient, vectors: dict[str, np.ndarray]
) -> None:
    answer = client.post(
        "/console/try", content=urlencode({**PAIR, "source": "none", "text": "a"}), headers=FORM
    )
    assert answer.status_code == 422
    assert "has no embeddings by &#39;none&#39;" in answer.text
    status, page = send(client, vector="[" + "0.5, " * 100_000 + "1]")
    assert status == 413
    assert "<html" in page


def test_an_empty_project_teaches_the_first_calls(client: TestClient) -> None:
    assert "anchorage quickstart postgresql://" in client.get("/console/try").text
    assert send(client, text="a")[0] == 422


@pytest.fixture
def by_text(encoding: Encoding) -> Iterator[dict[str, str]]:
    """A pair of encoders that both run in the service."""
    name = f"try-{uuid4().hex[:8]}"
    body = {"name": name, "inputs": TEXTS, "encoders": ["minilm", "toy"], "keep_inputs": True}
    encoding.http.post("/anchor-sets", json=body).raise_for_status()
    yield {"anchor_set": name, "source": "minilm", "target": "toy"}
    encoding.http.delete(f"/anchor-sets/{name}").raise_for_status()


def test_a_text_is_encoded_by_both_encoders(encoding: Encoding, by_text: dict[str, str]) -> None:
    content = urlencode({**by_text, "text": TEXTS[5]})
    page = encoding.http.post("/console/try", content=content, headers=FORM).text
    native, translated = re.findall(r'<table class="found">(.*?)</table>', page, re.DOTALL)
    assert f"<td>{TEXTS[5]} <span" in native.partition("</tr>")[2]  # the first row after the head
    assert TEXTS[5] in translated
    assert "1.000" in native
