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
    **dict.fromkeys(("script", "img", "iframe", "source"), "src"),
    **dict.fromkeys(("link", "use"), "href"),
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


def test_every_asset_is_there_and_none_is_on_another_host(site):
    for page in site.rglob("*.html"):
        assets = Assets()
        assets.feed(page.read_text(encoding="utf-8"))
        assert assets.found, page
        assert [each for each in assets.found if re.match(r"(?:https?:)?//", each)] == [], page
        for address in assets.found:
            # the addresses of 404.html begin at the root of the host
            if page.name != "404.html" and not address.startswith(("data:", "#")):
                file = page.parent / address.partition("?")[0].partition("#")[0]
                assert file.exists(), f"{page} loads {address}"
    for style in site.rglob("*.css"):
        imported = re.findall(r"(?:@import|url\()\s*[\"']?(https?:[^\"')]*)", style.read_text())
        assert imported == [], style


def test_the_reference_of_the_api_is_complete_and_offline(site):
    page = (site / "reference" / "rest.html").read_text()
    assert "default-src 'self'" in page
    assert (site / "reference" / "openapi.json").exists()
    assert "POST /translate" in (site / "reference" / "api" / "index.html").read_text()
