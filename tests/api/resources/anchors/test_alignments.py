"""/bootstrap with `pairs: none`: from two pools without a known pair to translations."""

from __future__ import annotations

import numpy as np
import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.maths.alignment.clouds import two_pools


@pytest.fixture(scope="module")
def pools():
    x, y, _ = two_pools(1_600)
    return {"source_pool": x.tolist(), "target_pool": y.tolist()}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A service with the usual limits, and two encoders."""
    app = create_app(Settings(data_dir=tmp_path_factory.mktemp("aligned")))
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        client.post("/encoders", json={"name": "old", "dim": 12})
        client.post("/encoders", json={"name": "new", "dim": 10})
        yield client


@pytest.fixture
def ask(served, pools):

    def post(**more):
        body = {"name": "made", "source": "old", "target": "new", "pairs": "none", "seeds": []}
        return served.post("/bootstrap", json={**body, **pools, **more})

    return post


def test_two_pools_without_a_pair_become_a_translator_that_says_what_it_is(
    ask, served, finished, pools
):
    answer = ask(options={"attempts": 2})
    assert answer.status_code == 202, answer.text
    job = finished(served, answer.json()["id"])
    assert (job["state"], job["error"]) == ("succeeded", None)
    result = job["result"]
    assert (result["anchor_set"], result["pairs"]) == ("made", "none")
    pair = {"source": "old", "target": "new", "anchor_set": "made"}
    fitted = served.post("/translators", json=pair).json()
    assert fitted["id"] == result["translator"]
    assert fitted["report"]["alignment"] == result["estimate"]
    assert fitted["report"]["promise"] is None
    assert served.get(f"/translators/{result['translator']}").json() == fitted
    body = {**pair, "vectors": pools["source_pool"][:3], "confidence": True}
    translated = served.post("/translate", json=body).json()
    assert translated["translator"] == result["translator"]
    assert "made-pairs" in [each["code"] for each in translated["warnings"]]
    refused = served.post("/translate", json={**body, "min_quality": {"recall": 0.5}})
    assert (refused.status_code, refused.json()["code"]) == (422, "quality-below-minimum")
    made = served.get("/anchor-sets/made").json()
    assert made["provenance"]["estimate"] == result["estimate"]
    assert served.get("/anchor-sets/made/pairs").json()["code"] == "pairs-not-found"
    findings = served.get("/anchor-sets/made/report").json()["lint"]
    assert "made-pairs" in [each["code"] for each in findings]


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"seeds": [[0, 0]]}, "invalid-seeds", "seeds"),
        ({"method": "paper"}, "invalid-request", "method"),
        ({"options": {"rounds": 9}}, "unknown-option", "options.rounds"),
        (
            {"source_pool": np.tri(9, 12).tolist()},
            "invalid-request",
            "source_pool",
        ),
        ({"pairs": "some"}, "invalid-request", "pairs"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_aligned_is_refused(ask, change, code, field):
    answer = ask(name="refused", **change)
    assert answer.status_code == 422
    assert (answer.json()["code"], answer.json()["field"]) == (code, field)
