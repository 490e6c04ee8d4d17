"""The pages in Chromium, with real data and with names that are markup.

Every page: no error in the browser's console, no violation of the policy, no request to another
host, and nothing of a client that is markup.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lancedb
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from anchorage_client import Client
from app.access.service import create_key
from app.context import RequestContext
from app.db.tables import Base, EncoderRow, StoreRow
from app.main import create_app
from app.settings import Settings
from app.types import Scope
from tests.serving import listening

#: Debian's name, Ubuntu's, and the one of Google's package
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

#: the size of a small phone; the height shows whole pages, which then load whole
PHONE = {"width": 360, "height": 9_000}


def hostile(kind: str) -> str:
    """A text that is markup wherever a page forgets to escape it."""
    return f"{kind}-text\"'><i data-hostile onclick=ran=1><script data-hostile>ran=1</script>"


def hostile_rows() -> list[Base]:
    """Rows with names that no request can have, as an older version or a stranger wrote them."""
    encoder = {"project": "hostile", "kind": "external", "dim": 12, "modality": "text"}
    first = EncoderRow(name=hostile("encoder"), model=hostile("model"), **encoder)
    place = {name: hostile(name) for name in ("name", "address", "collection")}
    options = {"options": {"where": place}}
    store = StoreRow(project="hostile", kind="lancedb", encoder=first, options=options, **place)
    return [first, store]


def fill(client: Client, lake: Path) -> list[str]:
    """Encoders, anchors, and a store with a plan; returns the paths of its pages."""
    generator = np.random.default_rng(5)
    meaning = generator.normal(size=(120, 8))
    old = meaning @ generator.normal(size=(8, 12)) + 0.1 * generator.normal(size=(120, 12))
    new = np.tanh(meaning @ generator.normal(size=(8, 16)) / 3)
    for name, vectors in (("old", old), ("new", new)):
        client.encoders.create(name, dim=vectors.shape[1])
    client.anchor_sets.create("faq", embeddings={"old": old, "new": new})
    rows = [{"id": id_, "text": f"text {id_}", "vector": row} for id_, row in enumerate(old[:40])]
    lancedb.connect(lake).create_table("docs", rows)
    place = {"kind": "lancedb", "address": "main", "collection": "docs", "text_field": "text"}
    client.stores.create("docs", encoder="old", **place)
    client.migrations.create(store="docs", target="new", anchor_set="faq", force_space=True)
    return [f"/console/stores/docs{page}" for page in ("/steps/run", "/steps/abandon", "")]


@pytest.fixture
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("no Chromium: install the package `chromium`")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def signed_in(browser: Browser, url: str, key: str) -> Iterator[tuple[Page, list[str]]]:
    """A page of a browser that is signed in, and what it did that a page must not do."""
    context = browser.new_context(viewport=PHONE, reduced_motion="reduce")
    page, faults = context.new_page(), []
    loud = ("error", "warning")
    page.on("console", lambda said: faults.append(said.text) if said.type in loud else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda sent: None if sent.url.startswith(url) else faults.append(sent.url))
    page.on("response", lambda came: faults.append(came.url) if came.status >= 500 else None)
    page.goto(f"{url}/console")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{url}/console")
    try:
        yield page, faults
    finally:
        context.close()


def test_the_pages_are_sound_and_follow_a_run(browser: Browser, tmp_path: Path) -> None:
    stores = {"main": {"url": str(tmp_path / "lake"), "projects": ["full"]}}
    app = create_app(Settings(data_dir=tmp_path / "data", auth="keys", stores=stores))
    with listening(app) as (host, port):
        url, services = f"http://{host}:{port}", app.state.services
        full, other = (
            create_key(services, RequestContext(project), name="b", scopes=[Scope.admin])[1]
            for project in ("full", "hostile")
        )
        with services.db.transaction() as session:
            session.add_all(hostile_rows())
        with Client(url, api_key=full) as client, signed_in(browser, url, full) as (page, faults):
            for path in ("/console", *fill(client, tmp_path / "lake")):
                page.goto(f"{url}{path}")
                expect(page.locator(".waiting")).to_have_count(0, timeout=60_000)
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
                assert faults == [], path
            page.get_by_role("button", name="Run", exact=True).click()
            expect(page.get_by_text("40 rows by the run")).to_be_visible(timeout=20_000)
            assert faults == []
        with signed_in(browser, url, other) as (page, faults):
            expect(page.locator(".waiting")).to_have_count(0, timeout=60_000)
            assert "-text" in page.content()
            assert page.locator("[data-hostile]").count() == 0
            assert page.evaluate("window.ran") is None
            assert faults == []
