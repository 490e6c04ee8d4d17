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
    "path", ["/", "/docs", "/docs/errors", "/openapi.json", STATIC, "/static-offline-docs/none.js"]
)
def test_they_need_no_key_no_page_frames_them_and_no_browser_guesses_what_they_are(locked, path):
    answer = locked.get(path)
    assert answer.status_code in (200, 404)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert rules(answer)["default-src"] == rules(answer)["frame-ancestors"] == ["'none'"]


def test_the_root_redirects_to_the_reference_also_below_a_prefix(client):
    answer = client.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/docs")
    mounted = TestClient(client.app, base_url="http://127.0.0.1", root_path="/prefix")
    page = mounted.get("/")
    assert page.url.path == "/prefix/docs"
    assert "url: '/prefix/openapi.json'" in page.text
    assert f'src="/prefix{STATIC}"' in page.text
    assert "/" not in client.get("/openapi.json").json()["paths"]


def test_pages_run_their_own_scripts_and_no_others(client):
    answer = client.get("/docs")
    page, allowed = answer.text, rules(answer)["script-src"]
    inline = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in inline]
    assert allowed == ["'self'", *(f"'sha256-{each}'" for each in hashes)]
    assert len(inline) == 1
    assert not re.search(r"\son\w+=|javascript:", page), "no other way to run one"
    for asset in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert asset.startswith("/")
        assert client.get(asset).status_code == 200
