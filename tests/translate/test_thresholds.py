"""/translators/{id}/threshold."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.testclient import TestClient

from app.demo.pack import load_pack

ANCHORS = 150


def make(client: TestClient, source: str, target: str, anchor_set: str) -> str:
    body = {"source": source, "target": target, "anchor_set": anchor_set, "method": "graded"}
    answer = client.post("/translators", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def ask(client: TestClient, id_: str, **query: Any) -> Any:
    return client.get(f"/translators/{id_}/threshold", params=query)


def test_a_threshold_of_real_encoders_rises_with_the_old_one(client, packed):
    first, second, *_ = (vectors := load_pack().vectors)
    for name in (first, second):
        client.post("/encoders", json={"name": name, "dim": vectors[name].shape[1]})
    embeddings = {name: packed(vectors[name][:ANCHORS].numpy()) for name in (first, second)}
    client.post("/anchor-sets", json={"name": "intents", "embeddings": embeddings})
    id_ = make(client, first, second, "intents")
    answers = [ask(client, id_, source=score).json() for score in (0.2, 0.4, 0.6, 1.0)]
    assert [each["source"] for each in answers] == [0.2, 0.4, 0.6, 1.0]
    *known, beyond = [each["by_rate"] for each in answers]
    assert known == sorted(known)
    assert beyond is None
    shares = [each["share"] for each in answers]
    assert shares == sorted(shares, reverse=True)
    assert answers[0]["scores"] == "translated-native"
    assert answers[0]["pairs_above"] > 10


def test_fewer_than_ten_distinct_anchors_are_a_conflict(stocked, refused, embeddings):
    nine = {
        name: np.concatenate([vectors[:9]] * 3).tolist() for name, vectors in embeddings.items()
    }
    stocked.post("/anchor-sets", json={"name": "few", "embeddings": nine})
    id_ = make(stocked, "first", "second", "few")
    refused(ask(stocked, id_, source=0.5), 409, "too-few-anchors", "id", detail="'few'")
