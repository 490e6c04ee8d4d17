"""What the documents say is what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from app import __version__, errors
from app.settings import Settings
from scripts import pages

ROOT = Path(__file__).parent.parent
#: codes that no class of app/errors has: those of the protocol, of validation, and of jobs that
#: lost their workers or devices
OTHER_CODES = {
    "attempts-exhausted",
    "device-failed",
    "headers-too-large",
    "internal",
    "malformed-http",
    "method-not-allowed",
    "unknown-field",
}
#: what has a code `...-not-found`
NOUNS = (
    *("encoder", "anchor-set", "pairs", "sample", "pool", "head", "translator", "alias"),
    *("store", "migration", "job", "api-key"),
)


def subclasses(cls: type) -> set[type]:
    return {cls} | {deeper for direct in cls.__subclasses__() for deeper in subclasses(direct)}


@pytest.mark.parametrize("name", pages.PAGES)
def test_the_generated_parts_of_the_pages_are_current(name: str) -> None:
    text = (ROOT / name).read_text()
    assert text == pages.filled(text), "`make pages` writes them"


def test_every_setting_has_a_description() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def prose_words(page: Path) -> int:
    """The words of a page outside of code, tables, comments and addresses of links."""
    text = re.sub(r"```.*?```|<!--.*?-->|^\|.*?$", "", page.read_text(), flags=re.M | re.S)
    return len(re.sub(r"\]\([^)]*\)", "", text).split())


def test_the_prose_of_the_readme_has_at_most_600_words() -> None:
    assert prose_words(ROOT / "README.md") <= 600


def test_the_prose_of_each_how_to_page_has_at_most_700_words() -> None:
    words = {page.name: prose_words(page) for page in ROOT.glob("docs/how-to/*.md")}
    assert {name: count for name, count in words.items() if count > 700} == {}


def test_every_error_has_a_code_of_its_own() -> None:
    found = subclasses(errors.AnchorageError)
    assert len({cls.code for cls in found}) == len(found)


def test_every_error_code_has_a_section_with_cause_and_way_out() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    sections = dict(
        re.findall(r"^### ([a-z0-9-]+)\n\n(.*?)(?=\n#|\Z)", text, re.MULTILINE | re.DOTALL)
    )
    leaves = {cls.code for cls in subclasses(errors.AnchorageError) if not cls.__subclasses__()} | {
        f"{noun}-not-found" for noun in NOUNS
    }
    assert leaves - sections.keys() == set()
    assert [code for code, section in sections.items() if "\n\n*What to do*: " not in section] == []
    known = {cls.code for cls in subclasses(errors.AnchorageError)} | leaves | OTHER_CODES
    assert sections.keys() - known == set()


def test_the_changelog_begins_with_this_version() -> None:
    first = re.search(r"^## \[?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] in (__version__, "Unreleased")


def test_every_link_in_the_documents_leads_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("app/demo/data/*.md")]
    for document in documents:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_nothing_was_lost_in_the_fault_table() -> None:
    faults = json.loads((ROOT / "benchmarks" / "results" / "faults.json").read_text())
    columns, *rows = faults["tables"]["faults"]
    never = [columns.index(name) for name in ("other 5xx", "dropped", "lost", "twice", "wrong")]
    assert [row[0] for row in rows if {row[place] for place in never} != {"0"}] == []


def test_every_page_is_in_the_navigation() -> None:
    configuration = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r": ([a-z0-9/-]+\.md)$", configuration, re.MULTILINE))
    written = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    assert named == written | {"contributing.md", "changelog.md", "security.md"}


@pytest.mark.parametrize("drawing", ["rooms.svg", "request.svg"])
def test_the_drawings_name_what_exists(drawing: str) -> None:
    text = (ROOT / "docs" / "assets" / drawing).read_text()
    names = re.findall(r">((?:app|workers)[a-z_/.]*)<", text) + re.findall(
        r'data-path="([^"]+)"', text
    )
    assert len(names) > 10
    assert [name for name in names if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "page", ["docs/explanation/mathematics.md", "docs/explanation/architecture.md"]
)
def test_the_explanations_name_what_exists(page: str) -> None:
    paths = re.findall(r"`([a-z_]+/[a-z_/.]+)`", (ROOT / page).read_text())
    roots = (ROOT, ROOT / "app" / "maths")
    assert len(paths) > 3
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


def test_every_path_in_the_guide_for_contributors_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"(?<![\w/])(?:app|docs|scripts|tests|workers)/[\w./-]*\w", text)
    assert len(paths) > 40
    assert [path for path in paths if "KIND" not in path and not (ROOT / path).exists()] == []
