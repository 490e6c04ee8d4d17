"""Debian's packages and the tags that people gave them: a judged collection.

A query is the description of a tag, a document the description of a package, and a package is
relevant to a tag if people gave it that tag (https://wiki.debian.org/Debtags).
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import DATA, Missing

FOLDER = DATA / "debtags"
ORIGIN = (
    "`Packages` and `Translation-en` of a Debian release (from .../dists/bookworm/main/"
    "binary-amd64/Packages.xz and .../i18n/Translation-en.xz of any mirror, unpacked), and "
    "`vocabulary` (/usr/share/debtags/vocabulary of the package debtags)"
)

DOCUMENTS, WORDS = 5_000, 90

#: a tag is a query if that many documents have it: fewer say little, more are no search
FEWEST_RELEVANT, MOST_RELEVANT = 5, 200

#: facets that say how a package is built or run, which its description need not tell
LEFT_OUT = frozenset(
    ("implemented-in", "interface", "made-of", "role", "scope", "special", "suite", "uitoolkit")
)


@dataclass(frozen=True, eq=False)
class Texts:
    """documents, queries; relevance: (query row, document row, grade)."""

    documents: Sequence[str]
    queries: Sequence[str]
    relevance: Sequence[tuple[int, int, int]]


def load() -> Texts:
    """The collection. Raises Missing."""
    files = [FOLDER / name for name in ("Packages", "Translation-en", "vocabulary")]
    if not all(file.exists() for file in files):
        raise Missing(f"{FOLDER}: {ORIGIN}. Or set ANCHORAGE_DATA.")
    packages, translations, vocabulary = files
    tags_of = _tags(packages)
    documents: dict[str, str] = {}
    seen = set()
    for name, text in _descriptions(translations):
        # Packages of one source share the body of their description: keep one of them.
        body = text.partition(". ")[2]
        if name in tags_of and name not in documents and body and body not in seen:
            seen.add(body)
            documents[name] = _cut(text)
    names = sorted(documents, key=lambda name: hashlib.sha256(name.encode()).digest())[:DOCUMENTS]
    tagged: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        for tag in tags_of[name]:
            tagged[tag].append(row)
    queries: list[str] = []
    relevance: list[tuple[int, int, int]] = []
    for tag, text in _tag_descriptions(vocabulary):
        rows = tagged.get(tag, [])
        if FEWEST_RELEVANT <= len(rows) <= MOST_RELEVANT and tag.partition("::")[0] not in LEFT_OUT:
            relevance += [(len(queries), row, 1) for row in rows]
            queries.append(_cut(text))
    return Texts([documents[name] for name in names], queries, relevance)


def _stanzas(path: Path) -> Iterator[dict[str, str]]:
    """The paragraphs of a control file, as fields with unfolded values."""
    fields: dict[str, str] = {}
    last = ""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line == "\n":
                if fields:
                    yield fields
                fields = {}
            elif line[0] == " ":
                fields[last] += "\n" + line.strip()
            else:
                last, _, value = line.partition(":")
                fields[last] = value.strip()
    if fields:
        yield fields


def _tags(packages: Path) -> dict[str, list[str]]:
    return {
        each["Package"]: re.split(r",\s*", each["Tag"].replace("\n", " ").strip(" ,"))
        for each in _stanzas(packages)
        if "Tag" in each
    }


def _descriptions(translations: Path) -> Iterator[tuple[str, str]]:
    for each in _stanzas(translations):
        if "Description-en" in each:
            yield each["Package"], _prose(each["Description-en"])


def _tag_descriptions(vocabulary: Path) -> Iterator[tuple[str, str]]:
    """Tags with the name of their facet before the description: "Culture: Italian."."""
    facet = ""
    for each in _stanzas(vocabulary):
        if "Facet" in each:
            facet = each["Description"].partition("\n")[0]
        elif "TODO" not in each["Tag"]:
            yield each["Tag"], f"{facet}: {_prose(each['Description'])}"


def _prose(description: str) -> str:
    """The short description, a full stop, and the long one in a line."""
    short, _, long = description.partition("\n")
    paragraphs = (line for line in long.split("\n") if line != ".")
    return f"{short}. {' '.join(' '.join(paragraphs).split())}".strip()


def _cut(text: str) -> str:
    return " ".join(text.split()[:WORDS])
