"""/migrations without a store; tests/db/test_postgres_of_api.py plans and moves a real one."""

from __future__ import annotations

PLAN = {"store": "docs", "target": "second", "anchor_set": "items"}


def test_without_migrations_the_list_is_empty(client) -> None:
    assert client.get("/migrations").json() == {"migrations": [], "next_before": None}


def test_an_unknown_migration_is_not_found(client, refused) -> None:
    path = "/migrations/" + "0" * 32
    refused(client.get(path), 404, "migration-not-found", "id")


def test_an_unknown_store_is_not_found(stocked, refused) -> None:
    refused(stocked.post("/migrations", json=PLAN), 404, "store-not-found", "store")
