"""Pages that need no store of their own: files, jobs, and formats."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from starlette.testclient import TestClient

from app.console.formats import with_code

PAIR = {"source": "first", "target": "second", "anchor_set": "items"}
ASYNC = {"Prefer": "respond-async"}


def test_a_url_with_the_hash_is_kept_and_another_is_not(client: TestClient) -> None:
    page = client.get("/console").text
    url = re.search(r'"(/console/static/console.css\?v=[0-9a-f]{16})"', page)
    assert url is not None
    kept = client.get(url[1])
    assert kept.headers["content-type"].startswith("text/css")
    assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert client.get("/console/static/console.css").headers["cache-control"] == "no-cache"


def test_files_need_no_key_and_only_those_of_the_folder_are_found(locked: TestClient) -> None:
    assert locked.get("/console/static/htmx.min.js").status_code == 200
    for name in ("none.css", "..%2Fassets.py", "%2e%2e/assets.py"):
        assert locked.get(f"/console/static/{name}").status_code == 404


def test_code_is_marked_and_everything_is_escaped() -> None:
    assert with_code("send `a<b` to <x>") == "send <code>a&lt;b</code> to &lt;x&gt;"
    assert with_code("an odd ` sign <x>") == "an odd ` sign &lt;x&gt;"
    assert with_code("") == ""


def test_a_failed_job_shows_its_problem(
    stocked: TestClient, finished: Callable[..., dict[str, Any]]
) -> None:
    body = {**PAIR, "min_quality": {"recall": 1.0}, "method": "irp"}
    job = stocked.post("/translators", json=body, headers=ASYNC).json()
    assert finished(stocked, job["id"])["state"] == "failed"
    assert "quality-below-minimum" in stocked.get(f"/console/jobs/{job['id']}").text


def test_the_button_cancels_a_job_of_the_project_with_a_key_that_writes(
    locked: TestClient,
    new_key: Callable[..., str],
    bearing: Callable[[str], dict[str, str]],
    endless_bootstrap: dict[str, Any],
    finished: Callable[..., dict[str, Any]],
) -> None:
    reader, stranger = bearing(new_key(locked, "read")), bearing(new_key(locked, project="other"))
    locked.headers.update(bearing(new_key(locked)))
    for name, dim in (("first", 8), ("second", 6)):
        locked.post("/encoders", json={"name": name, "dim": dim})
    job = locked.post("/bootstrap", json=endless_bootstrap).json()["id"]
    page = locked.get("/console/jobs").text
    assert f'hx-post="/console/jobs/{job}/cancel"' in page
    assert "hx-confirm=" in page
    assert 'hx-trigger="every 2s"' in page
    assert "/cancel" not in locked.get("/console/jobs", headers=reader).text
    for headers, status in ((reader, 403), (stranger, 404), ({}, 200)):
        answer = locked.post(f"/console/jobs/{job}/cancel", headers=headers)
        assert answer.status_code == status
    assert locked.get(f"/console/jobs/{job}", headers=stranger).status_code == 404
    assert finished(locked, job)["state"] == "cancelled"
    assert locked.post(f"/console/jobs/{job}/cancel").status_code == 409
