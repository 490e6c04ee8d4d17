"""/migrations without a store; tests/api/test_postgres.py plans and moves a real one."""

from __future__ import annotations

import json
from typing import Any

import pytest

JSON = {"Content-Type": "application/json"}
PLAN = {"store": "docs", "target": "second", "anchor_set": "items"}


def test_without_migrations_the_list_is_empty(client) -> None:
    assert client.get("/migrations").json() == {"migrations": [], "next_before": None}


def test_an_unknown_migration_is_not_found(client, refused) -> None:
    path = "/migrations/" + "0" * 32
    refused(client.get(path), 404, "migration-not-found", "id")


def test_an_unknown_store_is_not_found(stocked, refused) -> None:
    refused(stocked.post("/migrations", json=PLAN), 404, "store-not-found", "store")


@pytest.mark.parametrize(
    "changes",
    [
        {"store": None},
        {"method": "magic"},
        {"re_embed": 0.5},
    ],
)
def test_a_wrong_field_is_named(stocked, changes: dict[str, Any]) -> None:
    body = {key: value for key, value in {**PLAN, **changes}.items() if value is not None}
    answer = stocked.post("/migrations", content=json.dumps(body), headers=JSON)
    assert answer.status_code in (400, 422), answer.json()
    field = next(iter(changes))
    if answer.status_code == 422:
        assert answer.json()["field"].split(".")[0] == field
