"""Build the documentation site into build/site: `python scripts/site.py`, or `make docs`.

Copies docs/ to build/docs and completes the copy: CONTRIBUTING.md and CHANGELOG.md become pages,
files that a page links to are copied along, and the API reference is generated.
Then Zensical builds the site; a link or an anchor that leads nowhere fails the build.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
STAGE = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"

#: pages of the repository's root, and their names on the site
ROOT_PAGES = {
    "SECURITY.md": "security.md",
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
#: the page that receives the table of routes, its place there, and the file name of the reference
API_PAGE = "reference/api.md"
ROUTES_MARK = "<!-- routes -->"
REFERENCE = "rest.html"

LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)

#: ReDoc loads a logo from its own site unless the page forbids it
REDOC = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'self'; img-src 'self' data:; \
style-src 'self' 'unsafe-inline'; worker-src blob:">
<title>Anchorage: API</title>
<link rel="icon" href="../assets/mark.svg">
</head>
<body style="margin: 0">
<redoc spec-url="openapi.json"></redoc>
<script src="redoc.standalone.js"></script>
</body>
</html>
"""


def main() -> None:
    """Stage the pages, then build the site; exits with Zensical's status."""
    stage(openapi())
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", "mkdocs.yml"]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status == 0:
        print(f"The site is in {SITE.relative_to(ROOT)}")
    sys.exit(status)


def stage(document: dict[str, Any]) -> None:
    """Fill build/docs anew. `document` is the API's OpenAPI document."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(DOCS, STAGE)
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS)
        text = linked(page.read_text(encoding="utf-8"), page, name)
        if name.as_posix() == API_PAGE:
            text = text.replace(ROUTES_MARK, routes(document))
        (STAGE / name).write_text(text, encoding="utf-8")
    for source, name in ROOT_PAGES.items():
        if name != "index.md":
            text = linked((ROOT / source).read_text(encoding="utf-8"), ROOT / source, Path(name))
            (STAGE / name).write_text(text, encoding="utf-8")
    add_reference(document)


def linked(text: str, source: Path, name: Path) -> str:
    """The text of `source` as page `name` of the site.

    Links to files outside docs/ lead to pages or copies on the site.
    A link to a folder becomes plain text, because a site cannot show a folder.
    """

    def link(match: re.Match[str]) -> str:
        target = match[2]
        if re.match(r"[a-z]+:|/", target):
            return match[0]
        file = (source.parent / target).resolve()
        if not file.is_file():
            raise SystemExit(f"{source.relative_to(ROOT)} links to {target}, which does not exist")
        return match[1] + os.path.relpath(_on_site(file), name.parent) + (match[3] or "") + match[4]

    parts = FENCE.split(text)
    return "".join(
        part if part.startswith("```") else LINK.sub(link, _without_folders(part, source))
        for part in parts
    )


def _without_folders(text: str, source: Path) -> str:
    def plain(match: re.Match[str]) -> str:
        return match[1] if (source.parent / match[2]).is_dir() else match[0]

    return re.sub(r"\[([^\]]+)\]\(([^)\s#:]+)\)", plain, text)


def _on_site(file: Path) -> Path:
    """The place of a file on the site. A file that is not a page is copied there."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS)
    inside = file.relative_to(ROOT)
    if inside.as_posix() in ROOT_PAGES:
        return Path(ROOT_PAGES[inside.as_posix()])
    # A copied Markdown file would become a page of the site, and its links would be checked.
    copy = Path("files") / (f"{inside}.txt" if inside.suffix == ".md" else inside)
    (STAGE / copy).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, STAGE / copy)
    return copy


def add_reference(document: dict[str, Any]) -> None:
    """The OpenAPI document, and ReDoc to read it with, in the folder of the page about the API."""
    import fastapi_offline

    folder = STAGE / Path(API_PAGE).parent
    (folder / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
    shutil.copyfile(
        Path(fastapi_offline.__file__).parent / "static" / "redoc.standalone.js",
        folder / "redoc.standalone.js",
    )
    (folder / REFERENCE).write_text(REDOC, encoding="utf-8")


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the application."""
    from app.main import create_app
    from app.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        return create_app(Settings(data_dir=Path(folder), auth="none")).openapi()


def routes(document: dict[str, Any]) -> str:
    """A table of all calls, grouped as the OpenAPI document groups them."""
    groups: dict[str, list[str]] = {tag["name"]: [] for tag in document["tags"]}
    for path, calls in document["paths"].items():
        for verb, call in calls.items():
            groups[call["tags"][0]].append(f"| `{verb.upper()} {path}` | {call['summary']} |")
    tables = (
        f"### {tag['name']}\n\n{tag['description']}\n\n| call | what it does |\n| --- | --- |\n"
        + "\n".join(groups[tag["name"]])
        for tag in document["tags"]
    )
    return f"[All calls with their fields and answers]({REFERENCE})\n\n" + "\n\n".join(tables)


if __name__ == "__main__":
    main()
