"""/anchor-sets/{name}/samples/{encoder}."""

from __future__ import annotations

import io

import numpy as np
import pytest

from app.anchors import samples
from app.http import media_types
from app.translate import fit as translators
from app.translate.maps import FitRequest

ROWS = np.random.default_rng(7).normal(size=(9, 3)).astype(np.float32)


@pytest.fixture
def filled(client):
    """Encoders `a` (3) and `b` (2), and their set `s`."""
    draw = np.random.default_rng(0)
    for name, dim in (("a", 3), ("b", 2)):
        client.post("/encoders", json={"name": name, "dim": dim})
    embeddings = {name: draw.normal(size=(5, dim)).tolist() for name, dim in (("a", 3), ("b", 2))}
    client.post("/anchor-sets", json={"name": "s", "embeddings": embeddings})
    return client


def stored(client):
    services = client.app.state.services
    pair = translators.find_pair(services, "default", FitRequest("a", "b", "s", "auto", {}))
    return [samples.sample_of(services, space) for space in pair]


def as_npy(rows):
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue(), media_types.NPY


def test_a_sample_is_set_shown_replaced_and_deleted(filled, refused):
    body = {"vectors": ROWS.tolist(), "store_size": 5_000_000_000}
    answer = filled.put("/anchor-sets/s/samples/a", json=body)
    assert answer.status_code == 200, answer.text
    assert [space["sample"] for space in answer.json()["spaces"]] == [
        {"rows": 9, "store_size": 5_000_000_000},
        None,
    ]
    coverage = answer.json()["coverage"]
    assert (coverage["verdict"], coverage["sampled"]) == ("unknown", 9)
    assert filled.get("/anchor-sets/s").json() | {"coverage": coverage} == answer.json()
    found, other = stored(filled)
    assert np.array_equal(found.numpy(), ROWS)
    assert other is None
    again = filled.put("/anchor-sets/s/samples/a", json={"vectors": ROWS[:2].tolist()}).json()
    assert again["spaces"][0]["sample"] == {"rows": 2, "store_size": None}
    assert len(stored(filled)[0]) == 2
    assert filled.delete("/anchor-sets/s/samples/a").status_code == 204
    assert stored(filled) == [None, None]
    refused(filled.delete("/anchor-sets/s/samples/a"), 404, "sample-not-found", "encoder")


def test_a_sample_is_read_from_a_body_of_vectors_with_its_store_size_in_the_query(filled):
    data, media = as_npy(ROWS)
    answer = filled.put(
        "/anchor-sets/s/samples/a?store_size=70", content=data, headers={"Content-Type": media}
    )
    assert answer.json()["spaces"][0]["sample"] == {"rows": 9, "store_size": 70}
    assert np.array_equal(stored(filled)[0].numpy(), ROWS)


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"vectors": [[1, 2]]}, 422, "dimension-mismatch", "vectors"),
        ({"vectors": [[1, 2, 3]] * 3, "store_size": 2}, 422, "invalid-request", "store_size"),
        ({"vectors": [[1, 2, 3]], "of": "z"}, 404, "encoder-not-found", "encoder"),
    ],
)
def test_a_wrong_sample_is_refused_and_changes_nothing(filled, refused, body, status, code, field):
    encoder = body.pop("of", "a")
    refused(filled.put(f"/anchor-sets/s/samples/{encoder}", json=body), status, code, field)
    assert stored(filled) == [None, None]
