"""What the documents say is what the code does."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from app import __version__, errors
from app.settings import Settings
from app.stores import port as base
from app.stores import registry
from app.stores.paired_store import PairedStore
from scripts import pages
from tests.stores.cases.all_cases import CASES

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
    *("encoder", "anchor-set", "pool", "head", "translator", "name"),
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


def test_the_readme_has_at_most_600_words_of_prose_and_a_how_to_page_700() -> None:
    words = {page: prose_words(page) for page in ROOT.glob("docs/how-to/*.md")}
    assert {page.name: count for page, count in words.items() if count > 700} == {}
    assert prose_words(ROOT / "README.md") <= 600


def test_every_error_code_is_one_errors_and_has_a_section_with_cause_and_way_out() -> None:
    found = subclasses(errors.AnchorageError)
    assert len({cls.code for cls in found}) == len(found)
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    sections = dict(
        re.findall(r"^### ([a-z0-9-]+)\n\n(.*?)(?=\n#|\Z)", text, re.MULTILINE | re.DOTALL)
    )
    leaves = {cls.code for cls in found if not cls.__subclasses__()}
    leaves |= {f"{noun}-not-found" for noun in NOUNS}
    assert leaves - sections.keys() == set()
    assert [code for code, section in sections.items() if "\n\n*What to do*: " not in section] == []
    known = {cls.code for cls in found} | leaves | OTHER_CODES
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


#: what names files and folders: a pattern of the names, how many there are at least, and the
#: folders below which they may be
NAMING = {
    "docs/assets/rooms.svg": (r">((?:app|workers)[a-z_/.]*)<", 10, [""]),
    "docs/assets/request.svg": (r'data-path="([^"]+)"|>((?:app|workers)[a-z_/.]*)<', 10, [""]),
    "docs/explanation/methods.md": (r"`([a-z_]+/[a-z_/.]+)`", 3, ["", "app/maths"]),
    "docs/explanation/architecture.md": (r"`([a-z_]+/[a-z_/.]+)`", 3, ["", "app/maths"]),
    "CONTRIBUTING.md": (r"(?<![\w/])((?:app|docs|scripts|tests|workers)/[\w./-]*\w)", 40, [""]),
}


@pytest.mark.parametrize("name", NAMING)
def test_drawings_and_pages_name_what_exists(name: str) -> None:
    pattern, least, roots = NAMING[name]
    paths = [
        next(filter(None, m.groups())) for m in re.finditer(pattern, (ROOT / name).read_text())
    ]
    assert len(paths) > least
    missing = [path for path in paths if not any((ROOT / root / path).exists() for root in roots)]
    assert [path for path in missing if "KIND" not in path] == []


GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
RECIPE = GUIDE.partition("\n## Add a connector")[2].partition("\n## ")[0]


def names(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def test_the_recipe_lists_the_whole_port() -> None:
    rows = [line.split("|") for line in RECIPE.splitlines() if line.startswith("| `")]
    port = [row for row in rows if names(row[1])[0][0].isupper()]
    listed = {names(row[1])[0]: set(names(row[2])) for row in port}
    verbs = {names(row[1])[0] for row in rows if row not in port}
    assert verbs | {"migration"} == PairedStore.__abstractmethods__
    assert listed == {
        "Store": set(base.Store.__abstractmethods__),
        "NewVectors": set(base.NewVectors.__abstractmethods__),
        "Migration": set(base.Migration.__abstractmethods__) - base.NewVectors.__abstractmethods__
        | {"NewVectors"},
        "Capabilities": {field.name for field in fields(base.Capabilities)},
    }


def test_every_connector_has_a_class_an_extra_and_a_case() -> None:
    extras = (ROOT / "pyproject.toml").read_text()
    for kind, (module, name, extra) in registry.CONNECTORS.items():
        assert issubclass(getattr(importlib.import_module(module), name), base.Store)
        assert f"\n{extra} = [" in extras
        assert kind in {case.kind for case in CASES}, kind
