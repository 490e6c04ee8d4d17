"""The documentation's pages: what a browser may do with them."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode

import pytest
from starlette.testclient import TestClient

STATIC = "/static-offline-docs/swagger-ui-bundle.js"


def rules(answer):
    """The directives of an answer's policy."""
    found = (
        each.strip().partition(" ") for each in answer.headers["content-security-policy"].split(";")
    )
    return {name: value.split() for name, _, value in found}


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/redoc", "/openapi.json", STATIC, "/static-offline-docs/none.js"]
)
def test_no_page_frames_them_and_no_browser_guesses_what_they_are(client, path):
    answer = client.get(path)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert rules(answer)["default-src"] == rules(answer)["frame-ancestors"] == ["'none'"]


def test_the_root_redirects_to_the_reference(client):
    answer = client.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/docs")
    mounted = TestClient(client.app, base_url="http://127.0.0.1", root_path="/prefix")
    answer = mounted.get("/", follow_redirects=False)
    assert answer.headers["location"] == "/prefix/docs"
    assert "/" not in client.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_pages_run_their_own_scripts_and_no_others(client, path):
    answer = client.get(path)
    page, allowed = answer.text, rules(answer)["script-src"]
    inline = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in inline]
    assert allowed == ["'self'", *(f"'sha256-{each}'" for each in hashes)]
    assert len(inline) == (path == "/docs")
    assert not re.search(r"\son\w+=|javascript:", page), "no other way to run one"
    for asset in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert asset.startswith("/")
        assert client.get(asset).status_code == 200


def test_pages_know_the_prefix_that_the_service_is_mounted_under(client):
    page = (
        TestClient(client.app, base_url="http://127.0.0.1", root_path="/prefix").get("/docs").text
    )
    assert "url: '/prefix/openapi.json'" in page
    assert f'src="/prefix{STATIC}"' in page


@pytest.mark.parametrize("path", ["/livez", "/encoders", "/nothing", "/metrics"])
def test_no_browser_guesses_what_any_answer_is(client, path):
    assert client.get(path).headers["x-content-type-options"] == "nosniff"
