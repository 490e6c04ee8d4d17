"""The rule of auto, estimates of translators, and requests that need more."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import select

from app.db.tables import TranslatorRow
from app.demo.pack import load_pack

PAIR = {"source": "a", "target": "b", "anchor_set": "real"}


@pytest.fixture
def real(client):
    """Vectors of 120 sentences by two real encoders, and with the second one's rows shuffled."""
    vectors = [each[:120].numpy() for each in load_pack().vectors.values()][:2]
    for name, rows in zip("ab", vectors, strict=True):
        assert (
            client.post("/encoders", json={"name": name, "dim": rows.shape[1]}).status_code == 201
        )
    shuffled = vectors[1][np.random.default_rng(0).permutation(120)]
    for name, target in (("real", vectors[1]), ("shuffled", shuffled)):
        body = {"name": name, "embeddings": {"a": vectors[0].tolist(), "b": target.tolist()}}
        assert client.post("/anchor-sets", json=body).status_code == 201
    client.vectors = vectors[0][:3].tolist()
    return client


def translate(client, **more):
    return client.post("/translate", json={**PAIR, "vectors": client.vectors, **more})


def estimated(client, **more):
    answer = client.post("/translators", json={**PAIR, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["report"]["estimate"]


def test_the_shape_of_auto_is_the_clients_and_every_other_option_is_refused(real, refused):
    assert translate(real, options={"renormalise": False}).json()["options"]["renormalise"] is False
    for option in ("ridge", "delta", "decode_power"):
        refused(translate(real, options={option: 0.5}), 422, "unknown-option", f"options.{option}")


def test_a_report_of_another_version_is_measured_anew(real):
    """Processes of the previous version write old reports until they are replaced."""
    made = real.post("/translators", json=PAIR).json()
    with real.app.state.services.db.transaction() as session:
        row = session.scalars(
            select(TranslatorRow).where(TranslatorRow.content == made["id"])
        ).one()
        row.report = {"anchors": 120, "estimate": None}
    assert real.get(f"/translators/{made['id']}").json() == made


# --- estimates ------------------------------------------------------------------------------------


def test_a_minimum_is_compared_in_the_index_that_the_request_names(real, refused):
    at = {
        size: estimated(real, index=size)["measures"]["recall"]["value"] for size in (100, 100_000)
    }
    middle = {"recall": (at[100] + at[100_000]) / 2}
    assert translate(real, min_quality=middle, index=100).status_code == 200
    answer = translate(real, min_quality=middle, index=100_000)
    refused(answer, 422, "quality-below-minimum", "min_quality", detail="100,000 items")
    assert answer.json()["found"] == estimated(real, index=100_000)
    made = real.post("/translators", json={**PAIR, "min_quality": {"recall": 1.0}})
    refused(made, 422, "quality-below-minimum", "min_quality", detail="recall")


def test_a_sample_of_the_store_is_searched_and_its_size_is_the_default_index(real):
    before = real.post("/translators", json=PAIR).json()
    store = [each[120:420].numpy() for each in load_pack().vectors.values()][1]
    put = real.put(
        "/anchor-sets/real/samples/b", json={"vectors": store.tolist(), "store_size": 320}
    )
    assert put.status_code in (200, 201), put.text
    after = real.get(f"/translators/{before['id']}").json()["report"]
    assert (after["estimate"]["index"], after["estimate"]["measured"]) == (320, True)
    assert [each["index"] for each in after["estimates"]] == [320, 1_000, 10_000, 100_000]
