"""The pages in Chromium, against a real server with real data.

Every page, empty and full, light and dark, on a phone and on a desktop: no error in the browser's
console, no violation of the policy, no request to another host, and no serious fault of
accessibility.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx2
import lancedb
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright
from sqlalchemy import select

from app.services.access.api_keys import create_key
from app.services.anchors.anchor_embedding import write_inputs
from app.services.encoders.encoding import Inputs
from app.services.request_context import RequestContext
from app.settings import Settings
from app.storage.tables import (
    AliasRow,
    AnchorSetRow,
    Base,
    EncoderRow,
    HeadRow,
    JobRow,
    StoreRow,
    now,
)
from app.types import Scope
from app.wiring import make_services
from tests.e2e.conftest import Process

#: Debian's name, Ubuntu's, and the one of Google's package
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

#: the width of a small phone, and of a laptop; the height shows whole pages, which then load whole
SIZES = {"phone": (360, 9_000), "desktop": (1280, 6_000)}
THEMES = ("light", "dark")

PAGES = (
    "/console",
    "/console/pairs",
    "/console/pair",
    "/console/spaces",
    "/console/map",
    "/console/try",
    "/console/jobs",
    "/console/keys",
    "/console/audit",
)

#: what a person must not meet: faults that axe calls serious or critical
GRAVE = ("serious", "critical")

#: links of one page that a test follows
MAX_LINKS = 3

PAIR = {"source": "old", "target": "new", "anchor_set": "faq"}


#: questions of the map and of the try-it page
QUERIES = ({}, PAIR, dict.fromkeys(PAIR, "'><i data-hostile>"))


@dataclass
class Console:
    """A server with keys, and a browser; `empty`, `full` and `hostile` are keys of projects.

    pages  of the full project: those of PAGES, those of a set, a translator, a job and a store
    """

    url: str
    browser: Browser
    empty: str
    full: str
    hostile: str
    data: Path
    pages: list[str] = field(default_factory=list)

    def http(self, key: str) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    @contextmanager
    def open(
        self, key: str, *, size: tuple[int, int] = (1280, 900), theme: str = "light"
    ) -> Iterator[tuple[Page, list[str]]]:
        """A page of a browser that is signed in, and the faults that the browser has met."""
        width, height = size
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            reduced_motion="reduce",
        )
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
    keys = make_keys(folder / "data", "empty", "full", "hostile")
    with ExitStack() as stack:
        stores = json.dumps({"main": {"url": str(folder / "lake"), "projects": ["full"]}})
        process = Process(folder / "data", auth="keys", stores=stores)
        stack.callback(process.close)
        process.start().ready()
        driver = stack.enter_context(sync_playwright())
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        stack.callback(browser.close)
        made = Console(process.url, browser, *keys, folder / "data")
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
    create_key(services, RequestContext("hostile"), name=hostile("key"), scopes=[Scope.read])
    services.close()
    return keys


def hostile(kind: str) -> str:
    """A text that is markup wherever a page forgets to escape it."""
    return f"{kind}-text\"'><i data-hostile onclick=ran=1><script data-hostile>ran=1</script>"


def hostile_rows() -> list[Base]:
    """Rows with names that no request can have, as an older version or a stranger wrote them."""
    encoder = {"project": "hostile", "kind": "external", "dim": 12, "modality": "text"}
    first = EncoderRow(name=hostile("encoder"), model=hostile("model"), **encoder)
    second = EncoderRow(name=hostile("target"), **encoder)
    return [
        *(first, second),
        AliasRow(project="hostile", name=hostile("alias"), model=hostile("aliased")),
        HeadRow(
            project="hostile",
            name=hostile("head"),
            kind="linear",
            dim=12,
            classes=[hostile("class")],
            outputs=1,
            blob="0" * 64,
            encoder=first,
        ),
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


def keep_texts(data: Path, texts: list[str]) -> None:
    """Store the texts of the set `faq`, which external encoders do not need."""
    services = make_services(Settings(data_dir=data))
    with services.db.transaction() as session:
        query = select(AnchorSetRow).filter_by(project="hostile", name="faq")
        session.scalars(query).one().inputs = write_inputs(services, Inputs(texts))
    services.close()


def fill(http: httpx2.Client) -> list[str]:
    """Two encoders, an anchor set, a translator and a job; returns the paths of their pages."""

    def post(path: str, **body: Any) -> dict[str, Any]:
        answer = http.post(path, json=body, headers=body.pop("headers", {}))
        assert answer.is_success, answer.text
        return answer.json()

    generator = np.random.default_rng(5)
    meaning = generator.normal(size=(120, 8))
    old = meaning @ generator.normal(size=(8, 12)) + 0.1 * generator.normal(size=(120, 12))
    new = np.tanh(meaning @ generator.normal(size=(8, 16)) / 3)
    new[[3, 50]] = new[[50, 3]]  # a finding
    post("/encoders", name="old", dim=12)
    post("/encoders", name="new", dim=16)
    post("/anchor-sets", name="faq", embeddings={"old": old.tolist(), "new": new.tolist()})
    translator = post("/translators", **PAIR)
    job = http.post("/translators", json=PAIR, headers={"Prefer": "respond-async"}).json()
    return [
        "/console/spaces/faq",
        f"/console/pairs/{translator['id']}",
        f"/console/jobs/{job['id']}",
    ]


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


def grave_faults(page: Page) -> list[str]:
    """Look at a loaded page on a phone and on a desktop, in both themes."""
    found = []
    for size, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append(f"the page scrolls sideways on a {size}")
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            found += [
                f"{size}, {theme}: {fault['id']}: {fault['nodes'][0]['html'][:200]}"
                for fault in Axe().run(page).response["violations"]
                if fault["impact"] in GRAVE
            ]
    return found


@pytest.mark.parametrize("project", ["empty", "full"])
def test_every_page_is_sound(console: Console, project: str) -> None:
    key, pages = (console.empty, PAGES) if project == "empty" else (console.full, console.pages)
    wrong = {}
    with console.open(key, size=SIZES["phone"]) as (page, faults):
        for path in pages:
            page.goto(f"{console.url}{path}")
            wait_for_parts(page)
            faults += grave_faults(page)
            if faults:
                wrong[path] = faults.copy()
                faults.clear()
    assert wrong == {}


def test_no_text_of_a_client_is_markup_on_any_page(console: Console) -> None:
    with console.http(console.hostile) as http:
        pages = [*PAGES, *fill(http)]
        pages += [f"/console/jobs/{each['id']}" for each in http.get("/jobs").json()["jobs"]]
    keep_texts(console.data, [hostile(f"anchor{row}") for row in range(120)])
    pages += [f"/console/{each}/{quote(hostile('path'), safe='')}" for each in ("spaces", "jobs")]
    pages += [
        f"/console/{each}?{urlencode(asks)}" for each in ("pair", "map", "try") for asks in QUERIES
    ]
    pages.append(f"/console/sign-in?{urlencode({'next': hostile('next')})}")
    shown, visited = set(), set()
    with console.open(console.hostile, size=SIZES["desktop"]) as (page, faults):
        while pages:
            path = pages.pop()
            visited.add(path)
            answer = page.goto(f"{console.url}{path}")
            assert answer is not None
            assert "script-src 'self';" in answer.headers["content-security-policy"], path
            wait_for_parts(page)
            assert page.locator("[data-hostile]").count() == 0, path
            assert page.evaluate("window.ran") is None, path
            shown |= set(re.findall(r"([a-z]+)\d*-text", page.content()))
            links = page.eval_on_selector_all("a[href^='/console']", "all => all.map(a => a.href)")
            fresh = {link.removeprefix(console.url).partition("#")[0] for link in links}
            pages += sorted(fresh - visited - set(pages))[:MAX_LINKS]
        page.goto(f"{console.url}/console/try?{urlencode(PAIR)}")
        page.fill("#vector", str([1.0] * 12))
        page.locator("#try button.primary").click()
        page.wait_for_selector("table.found", timeout=60_000)
        assert page.locator("[data-hostile]").count() == 0
        shown |= set(re.findall(r"(anchor)\d+-text", page.inner_text("table.found")))
        # Chromium reports a 404 and a 422 of this test's own wrong addresses.
        assert [each for each in faults if "Failed to load resource" not in each] == []
    assert {"key", "encoder", "detail", "anchor", "model"} <= shown, shown


def test_a_grave_fault_would_be_found(console: Console) -> None:
    with console.open(console.empty) as (page, _):
        page.evaluate(
            """() => {
                const image = document.createElement("img");
                image.width = 2000;
                document.querySelector("main").append(image);
            }"""
        )
        found = "".join(grave_faults(page))
        assert "image-alt" in found
        assert "scrolls sideways" in found


def test_the_form_for_the_key_is_sound_and_leads_back(console: Console) -> None:
    context = console.browser.new_context()
    page = context.new_page()
    faults = watch(page, console.url)
    page.goto(f"{console.url}/console/jobs")
    assert page.url.endswith("/console/sign-in?ended=0&next=/console/jobs")
    assert grave_faults(page) == faults == []
    page.get_by_label("API key").fill("anc_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown, expired or revoked")
    page.get_by_label("API key").fill(console.full)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto(f"{console.url}/console")
    assert "/sign-in" in page.url
    context.close()


def test_the_policy_stops_scripts_and_styles_of_a_page(console: Console) -> None:
    with console.open(console.full) as (page, faults):
        page.evaluate(
            """() => {
                const script = document.createElement("script");
                script.textContent = "window.ran = true";
                document.body.append(script);
                document.querySelector("h1").setAttribute("style", "color: red");
            }"""
        )
        assert page.evaluate("window.ran") is None
        assert len([fault for fault in faults if "Content Security Policy" in fault]) == 2


def test_the_theme_is_remembered(console: Console) -> None:
    with console.open(console.full) as (page, faults):
        colour = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(colour)
        page.get_by_role("button", name="Dark theme").click()
        dark = page.evaluate(colour)
        assert dark != light
        page.reload()
        assert page.evaluate(colour) == dark
        expect(page.get_by_role("button", name="Light theme")).to_be_visible()
        assert faults == []


def test_the_keyboard_reaches_the_content_first(console: Console) -> None:
    with console.open(console.full) as (page, _):
        page.goto(f"{console.url}/console/pairs")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        assert page.get_by_role("link", name="Pairs").get_attribute("aria-current") == "page"


def test_facts_about_the_index_change_the_verdict(console: Console) -> None:
    with console.open(console.full) as (page, faults):
        page.goto(f"{console.url}/console/pair?{urlencode(PAIR)}")
        wait_for_parts(page)
        page.get_by_label("Items in the index").fill("70000")
        page.get_by_label("Does old still encode queries?").select_option("No")
        page.get_by_role("button", name="Update the verdict").click()
        expect(page.get_by_text("among 70,000")).to_be_visible()
        bars = page.get_by_role("list", name="Gain over keep in nDCG@10")
        expect(bars.get_by_role("listitem").first).to_contain_text("Keep impossible")
        assert faults == []


def test_a_job_is_followed_and_cancelled_without_a_reload(
    console: Console, endless_bootstrap: dict[str, Any]
) -> None:
    generator = np.random.default_rng(9)
    pools = {"source_pool": (200, 12), "target_pool": (200, 16)}
    vectors = {name: generator.normal(size=shape).tolist() for name, shape in pools.items()}
    with console.http(console.full) as http, console.open(console.full) as (page, faults):
        job = http.post(
            "/bootstrap", json={**endless_bootstrap, **vectors, "source": "old", "target": "new"}
        ).json()
        page.goto(f"{console.url}/console/jobs")
        row = page.locator(f"#job-{job['id']}")
        expect(row.get_by_text("running")).to_be_visible(timeout=20_000)
        before = row.get_by_role("progressbar").get_attribute("value")
        expect(row.get_by_role("progressbar")).not_to_have_attribute(
            "value", str(before), timeout=20_000
        )
        page.once("dialog", lambda dialog: dialog.accept())
        row.get_by_role("button", name="Cancel").click()
        expect(row.get_by_text("cancelled")).to_be_visible(timeout=20_000)
        expect(page.get_by_role("status")).to_have_text("No job waits or runs.", timeout=20_000)
        assert faults == []


def test_a_new_key_is_shown_once_and_can_be_revoked(console: Console) -> None:
    with console.open(console.empty) as (page, faults):
        page.goto(f"{console.url}/console/keys")
        page.get_by_label("Name").fill("shop")
        page.get_by_role("button", name="Create the key").click()
        shown = page.get_by_text("anc_")
        expect(shown).to_be_visible()
        secret = shown.inner_text()
        with console.http(secret) as http:
            assert http.get("/encoders").status_code == 200
            page.reload()
            expect(page.get_by_text("anc_")).to_have_count(0)
            page.once("dialog", lambda dialog: dialog.accept())
            page.get_by_role("button", name="Revoke the key shop").click()
            expect(page.get_by_text("revoked").first).to_be_visible()
            assert http.get("/encoders").status_code == 401
        page.goto(f"{console.url}/console/audit")
        log = page.get_by_role("region", name="Audit log")
        for change in ("create", "revoke"):
            expect(log.get_by_role("row", name=f"{change} api-key shop")).to_be_visible()
        assert faults == []


def test_a_wrong_field_of_a_form_is_explained_next_to_the_list(console: Console) -> None:
    with console.open(console.empty) as (page, _):
        page.goto(f"{console.url}/console/keys")
        page.get_by_label("Name").fill("shop")
        page.get_by_label("Rate limit").fill("fast")
        page.get_by_role("button", name="Create the key").click()
        expect(page.get_by_role("alert")).to_contain_text("600/minute")
        expect(page.get_by_role("region", name="Keys")).to_be_visible()


def test_a_key_that_ends_leads_an_open_page_to_the_form(console: Console) -> None:
    with console.http(console.full) as http:
        made = http.post("/api-keys", json={"name": "short", "scopes": ["read"]}).json()
        with console.open(made["key"]) as (page, _):
            page.goto(f"{console.url}/console/pair")
            wait_for_parts(page)
            assert http.delete(f"/api-keys/{made['id']}").status_code == 204
            page.get_by_role("button", name="Update the verdict").click()
            expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            expect(page.get_by_role("alert")).to_contain_text("no longer works")
