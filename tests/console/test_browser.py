"""The pages in Chromium, against a real server with real data.

Every page: no error in the browser's console, no violation of the policy, no request to another
host, and nothing of a client that is markup.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import lancedb
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from app.access.service import create_key
from app.db.tables import Base, EncoderRow, JobRow, StoreRow, now
from app.request_context import RequestContext
from app.settings import Settings
from app.types import Scope
from app.wiring import make_services
from tests.e2e.conftest import Process

#: Debian's name, Ubuntu's, and the one of Google's package
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

#: the size of a small phone; the height shows whole pages, which then load whole
PHONE = {"width": 360, "height": 9_000}

PAGES = ("/console", "/console/jobs")

PAIR = {"source": "old", "target": "new", "anchor_set": "faq"}


@dataclass
class Console:
    """A server with keys, and a browser; `full` and `hostile` are keys of projects.

    pages  of the full project: those of PAGES, those of a job and a store
    """

    url: str
    browser: Browser
    full: str
    hostile: str
    pages: list[str] = field(default_factory=list)

    def http(self, key: str) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    @contextmanager
    def open(self, key: str) -> Iterator[tuple[Page, list[str]]]:
        """A page of a browser that is signed in, and the faults that the browser has met."""
        context = self.browser.new_context(viewport=PHONE, reduced_motion="reduce")
        page = context.new_page()
        faults = watch(page, self.url)
        page.goto(f"{self.url}/console")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{self.url}/console")
        try:
            yield page, faults
        finally:
            context.close()


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """One server and one browser for all tests: starting both takes longer than most tests."""
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("no Chromium: install the package `chromium`")
    folder = tmp_path_factory.mktemp("console")
    keys = make_keys(folder / "data", "full", "hostile")
    with ExitStack() as stack:
        stores = json.dumps({"main": {"url": str(folder / "lake"), "projects": ["full"]}})
        process = Process(folder / "data", auth="keys", stores=stores)
        stack.callback(process.close)
        process.start().ready()
        driver = stack.enter_context(sync_playwright())
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        stack.callback(browser.close)
        made = Console(process.url, browser, *keys)
        with made.http(made.full) as http:
            made.pages = [*PAGES, *fill(http), *connect(http, folder / "lake")]
        yield made


def make_keys(data: Any, *projects: str) -> list[str]:
    data.mkdir()
    services = make_services(Settings(data_dir=data))
    services.db.upgrade()
    keys = [
        create_key(services, RequestContext(project), name="browser", scopes=[Scope.admin])[1]
        for project in projects
    ]
    with services.db.transaction() as session:
        session.add_all(hostile_rows())
    services.close()
    return keys


def hostile(kind: str) -> str:
    """A text that is markup wherever a page forgets to escape it."""
    return f"{kind}-text\"'><i data-hostile onclick=ran=1><script data-hostile>ran=1</script>"


def hostile_rows() -> list[Base]:
    """Rows with names that no request can have, as an older version or a stranger wrote them."""
    encoder = {"project": "hostile", "kind": "external", "dim": 12, "modality": "text"}
    first = EncoderRow(name=hostile("encoder"), model=hostile("model"), **encoder)
    return [
        first,
        StoreRow(
            project="hostile",
            name=hostile("store"),
            kind="lancedb",
            address=hostile("address"),
            collection=hostile("collection"),
            encoder=first,
        ),
        JobRow(
            project="hostile",
            kind=hostile("k")[:40],
            state="failed",
            arguments={"name": hostile("argument"), "source": hostile("source")},
            progress={"phase": hostile("phase")},
            error={"code": "x", "title": hostile("title"), "detail": hostile("detail")},
            finished_at=now(),
        ),
    ]


def fill(http: httpx2.Client) -> list[str]:
    """Two encoders, an anchor set and a job; returns the path of its page."""

    def post(path: str, **body: Any) -> dict[str, Any]:
        answer = http.post(path, json=body, headers=body.pop("headers", {}))
        assert answer.is_success, answer.text
        return answer.json()

    generator = np.random.default_rng(5)
    meaning = generator.normal(size=(120, 8))
    old = meaning @ generator.normal(size=(8, 12)) + 0.1 * generator.normal(size=(120, 12))
    new = np.tanh(meaning @ generator.normal(size=(8, 16)) / 3)
    post("/encoders", name="old", dim=12)
    post("/encoders", name="new", dim=16)
    post("/anchor-sets", name="faq", embeddings={"old": old.tolist(), "new": new.tolist()})
    job = http.post("/translators", json=PAIR, headers={"Prefer": "respond-async"}).json()
    return [f"/console/jobs/{job['id']}"]


def connect(http: httpx2.Client, lake: Path) -> list[str]:
    """A store by `old` with a planned migration; returns the paths of its pages."""
    vectors = np.random.default_rng(6).normal(size=(40, 12)).astype(np.float32)
    rows = [{"id": each, "text": f"text {each}", "vector": row} for each, row in enumerate(vectors)]
    lancedb.connect(lake).create_table("docs", rows)
    store = {"kind": "lancedb", "address": "main", "collection": "docs", "text_field": "text"}
    plan = {"store": "docs", "target": "new", "anchor_set": "faq", "force_space": True}
    for path, body in (
        ("/stores", {"name": "docs", "encoder": "old", **store}),
        ("/migrations", plan),
    ):
        answer = http.post(path, json=body)
        assert answer.is_success, answer.text
    return [f"/console/stores/docs{page}" for page in ("", "/plan", "/steps/run")]


def watch(page: Page, url: str) -> list[str]:
    """Collect everything that a page must not do."""
    faults: list[str] = []
    page.on(
        "console",
        lambda said: faults.append(said.text) if said.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "request",
        lambda sent: None if sent.url.startswith(url) else faults.append(f"asks {sent.url}"),
    )
    page.on(
        "response",
        lambda came: faults.append(f"{came.status} {came.url}") if came.status >= 500 else None,
    )
    return faults


def wait_for_parts(page: Page) -> None:
    """Wait until every part that loads later is there."""
    expect(page.locator(".waiting")).to_have_count(0, timeout=60_000)


def test_the_pages_are_sound_and_follow_a_job(
    console: Console, endless_bootstrap: dict[str, Any]
) -> None:
    generator = np.random.default_rng(9)
    pools = {"source_pool": (200, 12), "target_pool": (200, 16)}
    vectors = {name: generator.normal(size=shape).tolist() for name, shape in pools.items()}
    with console.http(console.full) as http, console.open(console.full) as (page, faults):
        for path in console.pages:
            page.goto(f"{console.url}{path}")
            wait_for_parts(page)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            assert faults == [], path
        job = http.post(
            "/bootstrap", json={**endless_bootstrap, **vectors, "source": "old", "target": "new"}
        ).json()
        page.goto(f"{console.url}/console/jobs")
        row = page.locator(f"#job-{job['id']}")
        expect(row.get_by_text("running")).to_be_visible(timeout=20_000)
        page.once("dialog", lambda dialog: dialog.accept())
        row.get_by_role("button", name="Cancel").click()
        expect(row.get_by_text("cancelled")).to_be_visible(timeout=20_000)
        expect(page.get_by_role("status")).to_have_text("No job waits or runs.", timeout=20_000)
        assert faults == []
    with console.http(console.hostile) as http, console.open(console.hostile) as (page, faults):
        jobs = [f"/console/jobs/{each['id']}" for each in http.get("/jobs").json()["jobs"]]
        for path in (*PAGES, *jobs):
            page.goto(f"{console.url}{path}")
            wait_for_parts(page)
            assert "-text" in page.content(), path
            assert page.locator("[data-hostile]").count() == 0, path
            assert page.evaluate("window.ran") is None, path
            assert faults == [], path
