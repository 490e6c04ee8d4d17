"""Admission: request ids, Host and Origin."""

from __future__ import annotations

import json
import re

import pytest

from app.db.tables import EncoderRow
from app.main import requires_keys
from app.settings import Settings

BEYOND = "0.0.0.0"  # noqa: S104


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "", "a b", "a" * 65, "\u00e9"])
def test_a_clients_own_request_id_is_used_and_any_other_is_replaced(client, given):
    headers = {} if given is None else {"X-Request-ID": given.encode()}
    ids = [client.get("/encoders", headers=headers).headers["x-request-id"] for _ in range(2)]
    assert all(re.fullmatch("[0-9a-f]{32}", id_) for id_ in ids)
    assert ids[0] != ids[1]
    for path in ("/encoders", "/nothing", "/livez"):
        answer = client.get(path, headers={"X-Request-ID": "Job-7.step_3"})
        assert answer.headers["x-request-id"] == "Job-7.step_3"


def test_also_a_fault_of_the_service_has_its_request_id_and_is_counted_as_what_it_is(
    client, refused, caplog
):
    client.post("/encoders", json={"name": "x", "dim": 2})
    with client.app.state.services.db.transaction() as session:  # a row that cannot be shown
        session.query(EncoderRow).update({"kind": "none"}, synchronize_session=False)
    answer = client.get("/encoders/x", headers={"X-Request-ID": "unlucky"})
    assert refused(answer, 500, "internal")["request_id"] == "unlucky"
    assert "unlucky" in caplog.text
    count = 'anchorage_request_seconds_count{method="GET",route="/encoders/{name}",status="500"}'
    assert count in client.get("/metrics").text


# --- Host -----------------------------------------------------------------------------------------


def test_a_service_on_loopback_answers_to_its_own_names_only(client, refused):
    """A page of the web can make a browser call loopback under its own name."""
    for host in ("LOCALHOST:80", "127.0.0.1", "[::1]:8080", "localhost:"):
        assert client.get("/encoders", headers={"Host": host}).status_code == 200
    for host in ("evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "[::2]:80", "[", ""):
        refused(client.get("/encoders", headers={"Host": host}), 403, "host-not-allowed", "Host")
    for path in ("/livez", "/readyz"):  # probes may come under any host
        assert client.get(path, headers={"Host": "10.0.0.1:8080"}).status_code == 200


@pytest.mark.parametrize(
    ("settings", "good", "wrong"),
    [
        (
            {"allowed_hosts": "api.example, Other.Example"},
            ["api.example", "API.EXAMPLE:443", "other.example:8080"],
            ["localhost", "example"],
        ),
        ({"allowed_hosts": "*"}, ["evil.example"], []),
        ({"auth": "keys"}, ["evil.example"], []),
        ({"host": BEYOND, "auth": "none"}, ["10.0.0.1:8080"], []),
    ],
)
def test_keys_or_the_operator_say_which_hosts_are_answered_to(
    serve, refused, settings, good, wrong
):
    client = serve(**settings)
    for host in good:
        assert client.get("/docs", headers={"Host": host}).status_code == 200
    for host in wrong:
        refused(client.get("/docs", headers={"Host": host}), 403, "host-not-allowed", "Host")


@pytest.mark.parametrize("host", [BEYOND, "::", "api.example", "localhost", "127.9.9.9", "::1"])
def test_keys_are_asked_for_beyond_loopback_only_unless_the_operator_says_otherwise(host):
    assert requires_keys(Settings(host=host)) == (
        host not in ("localhost", "127.0.0.1", "127.9.9.9", "::1")
    )
    assert not requires_keys(Settings(host=host, auth="none"))
    assert requires_keys(Settings(host=host, auth="keys"))


# --- pages of other sites -------------------------------------------------------------------------

BODY = {"name": "x", "dim": 2}
FORM = {"request": (None, json.dumps(BODY))}
OWN = "http://127.0.0.1"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Origin": OWN},
        {"Sec-Fetch-Site": ""},
        {"Origin": "http://127.0.0.1.evil.example"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://["},
    ],
)
def test_a_page_of_another_site_makes_nobodys_browser_change_anything(client, refused, headers):
    """A form needs no leave of the service: multipart/form-data is sent at once."""
    field = "Sec-Fetch-Site" if "Sec-Fetch-Site" in headers else "Origin"
    refused(client.post("/encoders", files=FORM, headers=headers), 403, "origin-not-allowed", field)
    refused(client.post("/translate", json={}, headers=headers), 403, "origin-not-allowed", field)
    refused(client.delete("/encoders/x", headers=headers), 403, "origin-not-allowed", field)
    assert client.get("/encoders", headers=headers).json() == {"encoders": []}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "same-origin", "Origin": OWN},
        # behind a proxy that changes the Host
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://api.example"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": OWN},
        {"Origin": OWN.upper()},
    ],
)
def test_its_own_pages_and_clients_that_are_no_browsers_do(client, headers):
    assert client.post("/encoders", json=BODY, headers=headers).status_code == 201


def test_where_keys_are_asked_for_a_page_has_none(locked, new_key, bearing):
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "https://app.example"}
    assert locked.post("/encoders", json=BODY, headers=headers).status_code == 401
    headers |= bearing(new_key(locked))
    assert locked.post("/encoders", json=BODY, headers=headers).status_code == 201
