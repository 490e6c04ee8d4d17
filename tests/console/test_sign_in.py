"""Who reaches the pages: the cookie, the form for the key, and the headers of every answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
def browser(locked: TestClient) -> Iterator[TestClient]:
    """A client that follows no redirect and starts without cookies."""
    locked.follow_redirects = False
    yield locked
    locked.cookies.clear()
    locked.follow_redirects = True


def sign_in(browser: TestClient, key: str, **more: str) -> object:
    return browser.post("/console/sign-in", content=urlencode({"key": key, **more}), headers=FORM)


def test_a_key_in_the_form_opens_the_pages_and_no_api_until_the_sign_out(
    browser: TestClient, new_key: Callable[..., str]
) -> None:
    key = new_key(browser, "read")
    answer = sign_in(browser, key, next="/console/stores/docs")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/stores/docs")
    cookie = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=strict", "Path=/console"):
        assert part in cookie
    assert "Secure" not in cookie  # the test client uses http
    assert browser.get("/console").status_code == 200
    ours = f"anchorage_key={key}"
    for cookies in (f"{ours}; flag", f"flag; {ours}", f'prefs={{"a":1}}; {ours}'):
        assert browser.get("/console", headers={"cookie": cookies}).status_code == 200
    assert browser.get("/encoders", headers={"cookie": f"anchorage_key={key}"}).status_code == 401
    answer = browser.post("/console/sign-out")
    assert answer.headers["location"] == "/console/sign-in"
    assert browser.get("/console").headers["location"].startswith("/console/sign-in")
    answer = browser.post(
        "https://127.0.0.1/console/sign-in", content=urlencode({"key": key}), headers=FORM
    )
    assert "Secure" in answer.headers["set-cookie"]


def test_a_wrong_or_revoked_key_gets_a_plain_message_and_no_cookie(browser: TestClient) -> None:
    answer = sign_in(browser, "anc_wrong")
    assert answer.status_code == 401
    assert "unknown, expired or revoked" in answer.text
    assert "set-cookie" not in answer.headers
    answer = browser.get("/console", headers={"cookie": "anchorage_key=anc_gone"})
    assert answer.headers["location"] == "/console/sign-in?ended=1&next=/console"
    assert 'anchorage_key=""' in answer.headers["set-cookie"]
    assert "no longer works" in browser.get(answer.headers["location"]).text


def test_signed_out_requests_lead_to_the_form_and_back_and_to_no_other_place(
    browser: TestClient, new_key: Callable[..., str]
) -> None:
    answer = browser.get("/console/stores/docs")
    assert answer.headers["location"] == "/console/sign-in?ended=0&next=/console/stores/docs"
    form = browser.get(answer.headers["location"])
    assert 'name="next" value="/console/stores/docs"' in form.text
    part = browser.get("/console/stores/docs", headers={"HX-Request": "true"})
    assert part.headers["hx-redirect"] == "/console/sign-in?ended=0"
    key = new_key(browser, "read")
    evil = ("https://evil.example", "//evil.example")
    for path in (*evil, "/docs", "/consoles", "/console/../docs"):
        assert sign_in(browser, key, next=path).headers["location"] == "/console", path


def test_forms_of_other_sites_are_refused_even_with_a_key(
    browser: TestClient, new_key: Callable[..., str]
) -> None:
    key = new_key(browser)
    cookie = {"cookie": f"anchorage_key={key}"}
    for header in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        answer = browser.post("/console/sign-out", headers={**cookie, **header})
        assert answer.status_code == 403
        assert "Pages of other sites" in answer.text
        form = {"content": urlencode({"key": key}), "headers": {**FORM, **header}}
        answer = browser.post("/console/sign-in", **form)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    answer = browser.post("/console/sign-out", headers={**cookie, "Sec-Fetch-Site": "same-origin"})
    assert answer.status_code == 303


def test_without_keys_the_console_is_open_and_the_form_stores_no_cookie(
    client: TestClient,
) -> None:
    assert client.get("/console").status_code == 200
    send = {"content": "key=anything", "headers": FORM, "follow_redirects": False}
    answers = (
        client.get("/console/sign-in", follow_redirects=False),
        client.post("/console/sign-in", **send),
    )
    assert [each.headers["location"] for each in answers] == ["/console"] * 2
    assert "set-cookie" not in answers[1].headers


def test_every_page_has_the_strict_policy_is_not_kept_and_may_be_a_problem(
    client: TestClient,
) -> None:
    for path in ("/console", "/console/sign-in", "/console/none"):
        answer = client.get(path, follow_redirects=False)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "/console/none does not exist" in answer.text
    part = client.get("/console/none", headers={"HX-Request": "true"})
    assert "<html" not in part.text


def test_a_page_of_another_site_may_link_to_a_page_and_ask_for_no_part(
    client: TestClient,
) -> None:
    other = {"Sec-Fetch-Site": "cross-site"}
    link, script = {"Sec-Fetch-Mode": "navigate"}, {"Sec-Fetch-Mode": "no-cors"}
    assert client.get("/console", headers={**other, **link}).status_code == 200
    assert client.get("/console", headers={**other, **script}).status_code == 403
    frame = {**link, "Sec-Fetch-Dest": "iframe"}
    assert client.get("/console", headers={**other, **frame}).status_code == 403
    own = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    assert client.get("/console", headers=own).status_code == 200
