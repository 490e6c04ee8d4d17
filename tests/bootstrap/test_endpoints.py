"""/bootstrap."""

from __future__ import annotations

import pytest


@pytest.fixture
def ask(stocked):
    """POST /bootstrap over pools of 120 items; a value of ... leaves a field out."""

    def post(**more):
        body = {
            "name": "found",
            "source": "first",
            "target": "second",
            **MANY,
            "seeds": PAIRS,
            "size": 20,
            "min_precision": 0,
            **more,
        }
        return stocked.post(
            "/bootstrap", json={key: value for key, value in body.items() if value is not ...}
        )

    return post


PAIRS = [[i, i] for i in range(12)]
MANY = {
    side: [[1.0 * i] * dim for i in range(120)]
    for side, dim in (("source_pool", 8), ("target_pool", 6))
}


@pytest.mark.parametrize(
    ("change", "status", "code", "field", "rows"),
    [
        ({"seeds": [*PAIRS, [120, 12]]}, 422, "invalid-seeds", "seeds", [12]),
        ({"target_pool": [[1.0] * 6] * 120}, 422, "degenerate-anchors", "target_pool", None),
        ({"name": "items"}, 409, "name-taken", "name", None),
        # a set has one space for each encoder
        (
            {"target": "first", "target_pool": MANY["source_pool"]},
            422,
            "invalid-request",
            "target",
            None,
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_request_is_refused_and_no_job_remains(
    ask, stocked, refused, change, status, code, field, rows
):
    refused(ask(**change), status, code, field, rows)
    assert stocked.get("/jobs").json() == {"jobs": []}
    refused(stocked.get("/anchor-sets/found"), 404, "anchor-set-not-found", "name")
