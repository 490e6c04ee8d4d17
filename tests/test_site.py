"""The documentation site builds without a warning, and needs no other host."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site"
#: what a browser loads by itself, and the attribute that names it
LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "link": "href",
    "use": "href",
}
#: relations of a link that load nothing
NAMED_ONLY = {"canonical", "next", "prev", "alternate"}


class Assets(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        address = values.get(LOADED.get(tag, ""))
        if address and not (tag == "link" and values.get("rel") in NAMED_ONLY):
            self.found.append(address)


#: every run of the checks builds the site (`make docs`), which finds broken links
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site() -> Path:
    command = [sys.executable, "-m", "scripts.site"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return SITE


def test_every_page_is_built(site):
    for name in (
        "index",
        "tutorial/index",
        "reference/errors/index",
        "explanation/decisions/index",
        "404",
    ):
        assert (site / f"{name}.html").stat().st_size > 1_000


def test_no_page_loads_anything_from_another_host(site):
    for page in site.rglob("*.html"):
        assets = Assets()
        assets.feed(page.read_text(encoding="utf-8"))
        assert assets.found, page
        assert [each for each in assets.found if re.match(r"(?:https?:)?//", each)] == [], page
    for style in site.rglob("*.css"):
        imported = re.findall(r"(?:@import|url\()\s*[\"']?(https?:[^\"')]*)", style.read_text())
        assert imported == [], style


def test_every_asset_is_there(site):
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue  # its addresses begin at the root of the host
        assets = Assets()
        assets.feed(page.read_text(encoding="utf-8"))
        for address in assets.found:
            if not address.startswith(("data:", "#")):
                file = page.parent / address.partition("?")[0].partition("#")[0]
                assert file.exists(), f"{page} loads {address}"


def test_the_reference_of_the_api_is_complete_and_offline(site):
    page = (site / "reference" / "rest.html").read_text()
    assert "default-src 'self'" in page
    assert (site / "reference" / "openapi.json").exists()
    assert "POST /translate" in (site / "reference" / "api" / "index.html").read_text()


def test_every_error_has_an_address(site):
    page = (site / "reference" / "errors" / "index.html").read_text()
    codes = re.findall(r"^### (.+)$", (ROOT / "docs/reference/errors.md").read_text(), re.MULTILINE)
    assert [code for code in codes if f'id="{code}"' not in page] == []
