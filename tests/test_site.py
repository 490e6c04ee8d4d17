"""The documentation site builds without a warning, and needs no other host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site"
#: what a browser loads by itself; links of the other relations load nothing
LOADED = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*?\bsrc="([^"]+)"'
    r'|<(?:link\b(?![^>]*\brel="(?:canonical|next|prev|alternate)")|use\b)[^>]*?\bhref="([^"]+)"'
)

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
        assets = [one or other for one, other in LOADED.findall(page.read_text(encoding="utf-8"))]
        assert assets, page
        assert [each for each in assets if re.match(r"(?:https?:)?//", each)] == [], page
        for address in assets:
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
