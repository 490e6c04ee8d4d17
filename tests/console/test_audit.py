"""/console/audit: who changed what, by names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from starlette.testclient import TestClient

from tests.console.test_overview import PAIR, stock


def test_the_log_names_the_key_and_has_further_pages(
    locked: TestClient, new_key: Callable[..., str], bearing: Callable[[str], dict[str, str]]
) -> None:
    admin = bearing(new_key(locked, "admin"))
    for number in range(32):
        locked.post("/encoders", json={"name": f"e{number}", "dim": 3}, headers=admin)
    page = locked.get("/console/audit", headers=admin).text
    assert "create encoder" in page
    assert ">e31<" in page
    assert ">e0<" not in page
    earlier = page.partition('href="/console/audit?')[2].partition('"')[0]
    assert ">e0<" in locked.get(f"/console/audit?{earlier}", headers=admin).text


def test_ids_are_shown_as_names(
    client: TestClient, finished: Callable[..., dict[str, Any]]
) -> None:
    stock(client)
    job = client.post("/translators", json=PAIR, headers={"Prefer": "respond-async"}).json()
    assert finished(client, job["id"])["state"] == "succeeded"
    page = client.get("/console/audit").text
    assert ">Fit a translator: first → second</span>" in page
    assert ">first → second</span>" in page
    table = re.sub("<[^>]*>", " ", page.partition("<tbody>")[2].partition("</tbody>")[0])
    assert not re.search("[0-9a-f]{16}", table)
    assert " job " in table
