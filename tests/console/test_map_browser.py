"""The map and the try-it box in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from shutil import which

import httpx2
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from app.main import create_app
from app.settings import Settings
from tests.api.conftest import behind_a_socket as behind_a_socket
from tests.console.test_browser import CHROMIUM, watch

PAIR = "anchor_set=items&source=first&target=second"

#: colours of native and translated points in the light theme, as in map.css
COLOURS = {"native": (0x1F, 0x6F, 0xB2), "translated": (0xD3, 0x65, 0x0A)}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = next(filter(None, map(which, CHROMIUM)), None)
    if path is None:
        pytest.skip("no Chromium: install the package `chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, behind_a_socket: Callable[..., tuple[str, int]]
) -> Iterator[str]:
    """A server with 300 items by two encoders."""
    generator = np.random.default_rng(7)
    first = generator.normal(size=(300, 8))
    second = first @ generator.normal(size=(8, 6)) + generator.normal(size=(300, 6))
    with ExitStack() as stack:
        host, port = behind_a_socket(
            stack, create_app(Settings(data_dir=tmp_path_factory.mktemp("map")))
        )
        base = f"http://{host}:{port}"
        for name, vectors in (("first", first), ("second", second)):
            body = {"name": name, "dim": vectors.shape[1]}
            httpx2.post(f"{base}/encoders", json=body).raise_for_status()
        embeddings = {"first": first.tolist(), "second": second.tolist()}
        body = {"name": "items", "embeddings": embeddings}
        httpx2.post(f"{base}/anchor-sets", json=body).raise_for_status()
        yield base


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(
        viewport={"width": 1000, "height": 800}, color_scheme="light", reduced_motion="reduce"
    )
    yield context.new_page()
    context.close()


def open_map(page: Page, site: str) -> Locator:
    page.goto(f"{site}/console/map?{PAIR}")
    page.wait_for_selector(".map[data-count='300']", timeout=60_000)
    frame = page.locator(".map")
    frame.scroll_into_view_if_needed()
    page.wait_for_selector("#map-summary dl")
    return frame


def count_points(frame: Locator, kind: str) -> int:
    """Number of pixels with about the colour of native or translated points."""
    picture = Image.open(io.BytesIO(frame.screenshot())).convert("RGB")
    away = np.abs(np.asarray(picture).astype(int) - COLOURS[kind]).max(axis=2)
    return int((away < 80).sum())


def test_the_map_draws_both_kinds_of_points(page: Page, site: str) -> None:
    faults = watch(page, site)
    frame = open_map(page, site)
    full = {kind: count_points(frame, kind) for kind in COLOURS}
    assert min(full.values()) > 300  # more than a pixel for each item
    page.uncheck("input[name=translated]")
    page.wait_for_timeout(200)
    assert count_points(frame, "translated") == 0
    assert count_points(frame, "native") >= full["native"]
    page.check("input[value=error]")
    page.wait_for_timeout(200)
    assert count_points(frame, "native") == 0
    assert faults == []


def test_keys_pan_and_select_and_the_pointer_selects_the_same_item(page: Page, site: str) -> None:
    faults = watch(page, site)
    frame = open_map(page, site)
    assert not page.locator(".map-item").is_visible()
    frame.focus()
    before = frame.screenshot()
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(300)
    assert frame.screenshot() != before
    label = page.locator(".map-item").inner_text()
    assert re.fullmatch(r"Row \d+\s*cosine -?[01]\.\d{3}", label)
    circle, box = page.locator(".map circle.native"), frame.bounding_box()
    centre = [float(circle.get_attribute(name)) for name in ("cx", "cy")]
    assert page.locator(".map line").get_attribute("x2") == (
        page.locator(".map circle.translated").get_attribute("cx")
    )
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.wait_for_timeout(100)
    assert not page.locator(".map-item").is_visible()
    page.mouse.move(box["x"] + centre[0], box["y"] + centre[1])
    page.wait_for_timeout(200)
    assert page.locator(".map-item").inner_text() == label
    page.keyboard.press("0")
    page.wait_for_timeout(200)
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.wait_for_timeout(200)
    assert frame.screenshot() == before
    assert faults == []


def test_dragging_and_the_wheel_move_the_points(page: Page, site: str) -> None:
    faults = watch(page, site)
    frame = open_map(page, site)
    frame.focus()
    page.keyboard.press("+")
    circle = page.locator(".map circle.native")
    box = frame.bounding_box()
    place = [float(circle.get_attribute(name)) for name in ("cx", "cy")]  # of a point
    x, y = box["x"] + place[0], box["y"] + place[1]
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 1, y)
    at = float(circle.get_attribute("cx"))
    page.mouse.move(x + 61, y)
    page.wait_for_timeout(100)
    assert float(circle.get_attribute("cx")) == pytest.approx(at + 60, abs=0.5)
    page.mouse.up()
    before = frame.screenshot()
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(200)
    assert frame.screenshot() != before
    assert faults == []


def test_the_box_shows_mistakes_and_results_in_place(page: Page, site: str) -> None:
    faults = watch(page, site)
    page.goto(f"{site}/console/try?{PAIR}")
    page.evaluate("document.body.dataset.loaded = 'once'")  # gone after a load of a whole page
    button = page.locator("#try button.primary")
    page.fill("#vector", "[1, 2]")
    button.click()
    assert "8" in page.locator("#vector-mistake").inner_text()
    page.fill("#vector", json.dumps([0.0] * 90_000))
    button.click()
    assert "limit" in page.locator("#try-problem .message").inner_text()
    page.fill("#vector", json.dumps([1, 0, 0, 0, 0, 0, 0, 0.5]))
    button.click()
    page.wait_for_selector("table.found", timeout=60_000)
    assert page.locator("table.found tbody tr").count() == 10
    assert page.evaluate("document.activeElement.id") == "found-title"  # it is read out
    assert page.evaluate("document.body.dataset.loaded") == "once"
    assert [fault for fault in faults if "status of 4" not in fault] == []
