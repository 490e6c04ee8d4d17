"""Pages that need no store of their own: files and formats."""

from __future__ import annotations

import re

from starlette.testclient import TestClient

from app.console.formats import with_code


def test_files_need_no_key_and_nothing_beside_them_is_served(locked: TestClient) -> None:
    page = locked.get("/console/sign-in").text
    url = re.search(r'"(/console/static/console.css\?v=[^"]+)"', page)
    assert url is not None
    assert locked.get(url[1]).headers["content-type"].startswith("text/css")
    for name in ("none.css", "..%2Fpages.py", "%2e%2e/pages.py"):
        assert locked.get(f"/console/static/{name}").status_code == 404


def test_code_is_marked_and_everything_is_escaped() -> None:
    assert with_code("send `a<b` to <x>") == "send <code>a&lt;b</code> to &lt;x&gt;"
    assert with_code("an odd ` sign <x>") == "an odd ` sign &lt;x&gt;"
