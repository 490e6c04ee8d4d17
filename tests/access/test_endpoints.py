"""API keys: authentication, scopes and expiry."""

from __future__ import annotations

import logging
import re

from sqlalchemy import select

from app.access import service as api_keys
from app.db.tables import AuditRow, Base

PUBLIC = {("GET", "/livez"), ("GET", "/readyz")}

#: Every other operation, by the weakest scope that may call it.
OPERATIONS = {
    ("read", "GET"): """
        /encoders /encoders/{name} /anchor-sets /anchor-sets/{name}
        /anchor-sets/{name}/report /pools /pools/{name}
        /stores /stores/{name} /names /names/{name}
        /heads /heads/{name} /translators/{id} /translators/{id}/file
        /translators/{id}/threshold
        /jobs /jobs/{id} /metrics
        /v1/models /v1/models/{model}
        /migrations /migrations/{id}
    """,
    ("read", "POST"): """
        /relative /translate /stitch /rescore
        /evaluate /advice /v1/embeddings /v1/rerank
        /stores/{name}/search
    """,
    ("write", "POST"): """
        /encoders /encoders/{name}/check
        /anchor-sets /pools/{name}/vectors /heads /translators
        /stores /bootstrap /compare /jobs/{id}/cancel
        /migrations /migrations/{id}/run /migrations/{id}/verify /migrations/{id}/sync
        /migrations/{id}/pause /migrations/{id}/cutover /migrations/{id}/rollback
        /migrations/{id}/finish /migrations/{id}/abandon
    """,
    ("write", "DELETE"): """
        /encoders/{name} /anchor-sets/{name}
        /pools/{name} /heads/{name} /stores/{name}
        /names/{name} /stores/{name}/native-vectors
    """,
    ("write", "PUT"): """
        /anchor-sets/{name}/embeddings/{encoder} /anchor-sets/{name}/samples/{encoder}
        /pools/{name}
        /names/{name}
    """,
    ("write", "PATCH"): "/migrations/{id}",
    ("admin", "GET"): "/api-keys",
    ("admin", "POST"): "/api-keys",
    ("admin", "DELETE"): "/api-keys/{id}",
}
NEEDED = {
    (verb, path): scope for (scope, verb), paths in OPERATIONS.items() for path in paths.split()
}
LADDER = ["read", "write", "admin"]


def call(client, operation, headers=None):
    """Calls the operation with unknown names, and an empty body if it takes one."""
    verb, path = operation
    id_ = "tr_" + "0" * 32 if path.startswith("/translators") else "0" * 32
    path = re.sub(r"{\w+}", "none", path.replace("{id}", id_))
    body = {} if verb in ("POST", "PUT", "PATCH") and not path.endswith("/cancel") else None
    return client.request(verb, path, json=body, headers=headers)


def test_the_table_of_scopes_names_every_operation(locked):
    paths = locked.get("/openapi.json").json()["paths"]
    assert {
        (verb.upper(), path) for path, verbs in paths.items() for verb in verbs
    } == PUBLIC | set(NEEDED)


def test_health_and_the_documentation_need_no_key(locked):
    for path in ("/livez", "/readyz", "/", "/docs", "/openapi.json"):
        assert locked.get(path).status_code == 200


def test_an_operation_answers_keys_of_its_scope_and_stronger_ones_only(
    locked, complaint, new_key, bearing
):
    keys = [bearing(new_key(locked, scope)) for scope in LADDER]
    for operation, scope in NEEDED.items():
        answer = call(locked, operation)
        assert complaint(answer) == (401, "unauthenticated"), operation
        assert answer.headers["www-authenticate"] == "Bearer"
        for place, key in enumerate(keys):
            answer = call(locked, operation, key)
            if place < LADDER.index(scope):
                assert complaint(answer) == (403, "scope-missing"), operation
                assert scope in answer.text
            else:
                assert answer.status_code not in (401, 403, 500), (operation, answer.text)


def test_a_key_may_come_in_either_header_and_the_scheme_in_any_case(locked, new_key):
    key = new_key(locked)
    for headers in (
        {"Authorization": f"Bearer {key}"},
        {"Authorization": f"bearer  {key} "},
        {"X-API-Key": key},
        {"Authorization": "Basic dTpw", "X-API-Key": key},
    ):
        assert locked.get("/encoders", headers=headers).status_code == 200, headers


def test_a_key_is_shown_once_and_no_answer_row_or_log_line_holds_its_secret(
    locked, new_key, bearing, caplog
):
    caplog.set_level(logging.DEBUG)
    admin = bearing(new_key(locked))
    answer = locked.post("/api-keys", json={"name": "once", "scopes": ["admin"]}, headers=admin)
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    key = answer.json()
    seen = locked.get("/encoders", headers=bearing(key["key"] + "x")).text
    for path in ("/api-keys", "/metrics"):
        seen += locked.get(path, headers=bearing(key["key"])).text
    locked.delete(f"/api-keys/{key['id']}", headers=admin)
    with locked.app.state.services.db.transaction() as session:
        stored = [session.execute(select(table)).all() for table in Base.metadata.sorted_tables]
    everything = f"{seen} {caplog.text} {stored} {locked.app.state.keys._known}"
    secret = key["key"].split("_", 2)[2]
    assert len(secret) == 43
    assert key["id"] in everything
    assert secret not in everything


def test_a_key_that_cannot_be_made_is_refused_by_field(client, refused):
    for expires_at in ("2001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"):
        answer = client.post("/api-keys", json={"name": "x", "expires_at": expires_at})
        refused(answer, 422, "invalid-request", "expires_at")
    assert client.get("/api-keys").json() == {"api_keys": []}
    # the end of the calendar is no fault of the service
    last = {"name": "x", "expires_at": "9999-12-31T23:59:59-14:00"}
    assert client.post("/api-keys", json=last).status_code in (201, 422)


def test_writes_are_in_the_audit_log_and_a_revoked_key_is_refused_at_once(
    locked, refused, new_key, bearing
):
    admin, writer = bearing(new_key(locked)), new_key(locked, "write")
    id_, headers = writer.split("_")[1], {**bearing(writer), "X-Request-ID": "made-it"}
    for _ in range(2):  # a refused request leaves no row
        locked.post("/encoders", json={"name": "x", "dim": 2}, headers=headers)
    for _ in range(2):
        assert locked.delete(f"/api-keys/{id_}", headers=admin).status_code == 204
    refused(locked.get("/encoders", headers=headers), 401, "unauthenticated")
    listed = locked.get("/api-keys", headers=admin).json()["api_keys"]
    assert [each["revoked_at"] is not None for each in listed if each["id"] == id_] == [True]
    members = ("action", "resource", "name", "key_id", "origin")
    with locked.app.state.services.db.transaction() as session:
        rows = session.scalars(select(AuditRow).order_by(AuditRow.created_at.desc())).all()
        first, second, *others = [tuple(getattr(row, each) for each in members) for row in rows]
    assert first[:3] == ("revoke", "api-key", id_)
    assert second == ("create", "encoder", "x", id_, "made-it")
    assert {row[4] for row in others} == {"command line"}


def test_a_flood_of_wrong_keys_delays_no_key_that_worked(locked, new_key, bearing, monkeypatch):
    monkeypatch.setattr(api_keys, "KEY_TRUST_S", 0.0)  # every request looks its key up
    monkeypatch.setattr(api_keys, "KEY_TRUST_AWAY_S", 0.0)
    valid = new_key(locked)
    assert locked.get("/encoders", headers=bearing(valid)).status_code == 200
    threads, flood = locked.app.state.keys._unknown_threads, [object(), object()]

    async def occupy() -> None:
        assert threads.total_tokens == len(flood)
        for each in flood:
            threads.acquire_on_behalf_of_nowait(each)

    async def release() -> None:
        for each in flood:
            threads.release_on_behalf_of(each)

    locked.portal.call(occupy)
    try:
        assert locked.get("/encoders", headers=bearing(valid)).status_code == 200
    finally:
        locked.portal.call(release)
