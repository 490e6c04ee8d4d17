"""/console/keys: creation, rotation and end of keys, and the audit log."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

FORM = {"content-type": "application/x-www-form-urlencoded"}
SECRET = re.compile(r"<code>(anc_[0-9a-f]{32}_[A-Za-z0-9_-]{43})</code>")


@pytest.fixture
def admin(
    locked: TestClient, new_key: Callable[..., str], bearing: Callable[[str], dict[str, str]]
) -> dict[str, str]:
    return bearing(new_key(locked, "admin"))


def create(client: TestClient, headers: dict[str, str], **fields: str) -> object:
    body = urlencode({"name": "backend", "scope": "read", **fields})
    return client.post("/console/keys", content=body, headers={**headers, **FORM})


def secret_of(answer: object) -> str:
    found = SECRET.search(answer.text)
    assert found is not None, answer.text
    return found[1]


def test_a_new_key_is_shown_once_and_works(
    locked: TestClient, admin: dict[str, str], bearing: Callable[[str], dict[str, str]]
) -> None:
    answer = create(locked, admin, expires="30", rate_limit="100/minute")
    assert answer.headers["cache-control"] == "no-store"
    secret = secret_of(answer)
    assert locked.get("/encoders", headers=bearing(secret)).status_code == 200
    page = locked.get("/console/keys", headers=admin).text
    assert "backend" in page
    assert "100/minute" in page
    assert secret not in page


def test_a_rotated_key_is_replaced(
    locked: TestClient, admin: dict[str, str], bearing: Callable[[str], dict[str, str]]
) -> None:
    old = secret_of(create(locked, admin))
    answer = locked.post(
        f"/console/keys/{old.split('_')[1]}/rotate", content="grace=0", headers={**admin, **FORM}
    )
    new = secret_of(answer)
    assert locked.get("/encoders", headers=bearing(new)).status_code == 200
    assert locked.get("/encoders", headers=bearing(old)).status_code == 401


def test_a_revoked_key_ends_at_once(
    locked: TestClient, admin: dict[str, str], bearing: Callable[[str], dict[str, str]]
) -> None:
    secret = secret_of(create(locked, admin))
    assert locked.get("/encoders", headers=bearing(secret)).status_code == 200
    answer = locked.post(f"/console/keys/{secret.split('_')[1]}/revoke", headers=admin)
    assert "revoked" in answer.text
    assert locked.get("/encoders", headers=bearing(secret)).status_code == 401


@pytest.mark.parametrize(
    "wrong", [{"scope": "all"}, {"name": ""}, {"expires": "1000"}, {"rate_limit": "fast"}]
)
def test_wrong_fields_create_nothing(
    locked: TestClient, admin: dict[str, str], wrong: dict[str, str]
) -> None:
    assert create(locked, admin, **wrong).status_code == 422
    assert len(locked.get("/api-keys", headers=admin).json()["api_keys"]) == 1


@pytest.mark.parametrize("scope", ["read", "write"])
def test_without_the_scope_admin_the_page_says_why_not_and_shows_the_callers_key_alone(
    locked: TestClient,
    admin: dict[str, str],
    new_key: Callable[..., str],
    bearing: Callable[[str], dict[str, str]],
    scope: str,
) -> None:
    headers = bearing(secret_of(create(locked, admin, name="the caller", scope=scope)))
    other = secret_of(create(locked, admin, name="somebody else"))
    page = locked.get("/console/keys", headers=headers)
    assert page.status_code == 200
    assert "anchorage keys create" in page.text
    assert "Create the key" not in page.text
    assert "the caller" in page.text
    assert "somebody else" not in page.text
    assert other.split("_")[1][:8] not in page.text
    assert locked.get("/api-keys", headers=headers).status_code == 403
    assert create(locked, headers).status_code == 403
    audit = locked.get("/console/audit", headers=headers)
    assert "the caller" in audit.text
    assert "somebody else" not in audit.text


def test_a_key_of_another_project_is_neither_shown_nor_changed(
    locked: TestClient,
    admin: dict[str, str],
    new_key: Callable[..., str],
    bearing: Callable[[str], dict[str, str]],
) -> None:
    other = new_key(locked, "admin", "other")
    key_id = other.split("_")[1]
    assert key_id[:8] not in locked.get("/console/keys", headers=admin).text
    assert locked.post(f"/console/keys/{key_id}/revoke", headers=admin).status_code == 404
    assert locked.get("/console/keys", headers=bearing(other)).status_code == 200


def test_without_keys_the_page_says_how_to_require_them(client: TestClient) -> None:
    assert "ANCHORAGE_AUTH=keys" in client.get("/console/keys").text


def test_names_are_escaped(locked: TestClient, admin: dict[str, str]) -> None:
    answer = create(locked, admin, name="<script>alert(1)</script>")
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;alert" in answer.text
