"""Names of every kind of resource: each exists once, even with two requests at a moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

#: two bodies of each kind that differ
KINDS = {
    "encoders": ({"dim": 2}, {"dim": 3}),
    "anchor-sets": (
        {"embeddings": {"second": np.eye(6)[:3].tolist()}},
        {"embeddings": {"first": np.eye(8)[:3].tolist()}},
    ),
    "heads": tuple(
        {"encoder": "second", "classes": [*pair], "weight": [[1] * 6, [0] * 6]}
        for pair in ("ab", "xy")
    ),
    "pools": tuple(
        {"encoder": name, "vectors": np.eye(d).tolist()}
        for name, d in (("first", 8), ("second", 6))
    ),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def make(client, kind, name, other=False):
    body = KINDS[kind][other]
    return (
        client.put(f"/pools/{name}", json=body)
        if kind == "pools"
        else client.post(f"/{kind}", json={"name": name, **body})
    )


def names(client, kind, **query):
    return [
        row["name"] for row in client.get(f"/{kind}", params=query).json()[kind.replace("-", "_")]
    ]


def test_pages_follow_the_names(stocked, kind):
    others = names(stocked, kind)  # `first`, `second` and `items` come after all that are made here
    for name in ("b", "d", "a", "c", "e"):
        assert make(stocked, kind, name).status_code == 201
    assert names(stocked, kind) == ["a", "b", "c", "d", "e", *others]
    assert names(stocked, kind, limit=2) == ["a", "b"]
    assert names(stocked, kind, limit=2, after="b") == ["c", "d"]
    assert names(stocked, kind, after="bb") == ["c", "d", "e", *others]
    assert names(stocked, kind, after="z") == []


def test_of_requests_for_one_name_at_the_same_moment_one_wins_and_its_row_stays(
    stocked, refused, kind
):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: make(stocked, kind, "x", n % 2 == 1), range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7
    codes = {answer.json()["code"] for answer in answers if answer.status_code == 409}
    assert codes <= {"name-taken", "conflict"}
    before = stocked.get(f"/{kind}/x").json()
    for other in (False, True):
        refused(make(stocked, kind, "x", other), 409, "name-taken", "name", detail="'x'")
    assert stocked.get(f"/{kind}/x").json() == before
    assert names(stocked, kind).count("x") == 1
