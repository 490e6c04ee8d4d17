"""Pages that need no store of their own: files and formats."""

from __future__ import annotations

import re

from starlette.testclient import TestClient

from app.console.formats import with_code


def test_files_need_no_key_and_are_kept_under_a_url_with_their_hash(locked: TestClient) -> None:
    page = locked.get("/console/sign-in").text
    url = re.search(r'"(/console/static/console.css\?v=[0-9a-f]{16})"', page)
    assert url is not None
    kept = locked.get(url[1])
    assert kept.headers["content-type"].startswith("text/css")
    assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert locked.get("/console/static/console.css").headers["cache-control"] == "no-cache"
    for name in ("none.css", "..%2Fassets.py", "%2e%2e/assets.py"):
        assert locked.get(f"/console/static/{name}").status_code == 404


def test_code_is_marked_and_everything_is_escaped() -> None:
    assert with_code("send `a<b` to <x>") == "send <code>a&lt;b</code> to &lt;x&gt;"
    assert with_code("an odd ` sign <x>") == "an odd ` sign &lt;x&gt;"
    assert with_code("") == ""
