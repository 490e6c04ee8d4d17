"""Debian's packages with people's tags, and queries of two tags, by three encoders.

The package index of this machine has the texts and tags, so that a later index has other numbers;
the package debtags says the tags in words. Nothing here chose a judgement: a package is relevant to
a query if it carries both of its tags.

    python -m benchmarks.debian

embeds all documents and queries once and keeps them in $ANCHORAGE_BENCHMARK_CACHE.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Missing
from benchmarks.migrate.vectors import embedded
from benchmarks.relevance.collection import JudgedCollection

VOCABULARY = Path("/usr/share/debtags/vocabulary")
INSTALL = (
    "The collection is read from a Debian package index: run `apt-get -o Acquire::Languages=en "
    "update` and `apt-get install debtags` on Debian."
)
ENCODERS = ("use", "e5", "minilm")

#: words of a document, because the slowest encoder needs a tenth of a second for as many
WORDS = 32

#: facets that say what a package is for; the others say how it is built or which part it is
FACETS = frozenset(
    (
        *("accessibility", "admin", "biology", "culture", "devel", "field", "game", "hardware"),
        *("made-of", "mail", "network", "office", "protocol", "science", "security", "sound"),
        *("use", "web", "works-with", "works-with-format"),
    )
)
LEAST_RELEVANT, MOST_RELEVANT = 5, 50

#: queries that are measured; all others are for learning
MEASURED = 200


@dataclass(frozen=True)
class Package:
    """A document: `text` is what encoders read."""

    name: str
    text: str
    tags: frozenset[str]


@dataclass(frozen=True)
class Query:
    """Two tags in words, and the rows of the documents that carry both."""

    text: str
    tags: tuple[str, str]
    relevant: tuple[int, ...]


def packages() -> list[Package]:
    """The tagged packages in the order of their names. Raises Missing.

    Packages of one source are one document with all their tags if their long descriptions are equal
    without the last paragraph, which says what part of the source a package holds (-dev, -dbg,
    -doc, languages); the one with the shortest name stands for them.
    """
    described = {each["Description-md5"]: each["Description-en"] for each in _index("Translations")}
    groups: dict[tuple[str, ...], list[tuple[str, str, set[str]]]] = defaultdict(list)
    tagged = {each["Package"]: each for each in _index("Packages") if "Tag" in each}
    for name, each in tagged.items():
        if (description := described.get(each["Description-md5"])) is None:
            continue
        short, _, long = description.strip().partition("\n")
        *paragraphs, last = (" ".join(part.split()) for part in re.split(r"\n \.\n", long))
        source = each.get("Source", name).split()[0]
        words = f"{name}: {short}. {' '.join([*paragraphs, last])}".split()[:WORDS]
        tags = {tag.strip() for tag in each["Tag"].replace("\n", " ").split(",")}
        groups[source, *(paragraphs or [last])].append((name, " ".join(words), tags))
    if not groups:
        raise Missing(INSTALL)
    found = []
    for group in groups.values():
        name, text, _ = min(group, key=lambda one: (len(one[0]), one[0]))
        found.append(Package(name, text, frozenset[str]().union(*(one[2] for one in group))))
    return sorted(found, key=lambda one: one.name)


def queries(documents: Sequence[Package]) -> tuple[list[Query], list[Query]]:
    """The queries to measure, drawn at random, and all others, for learning. Raises Missing.

    A query is two tags of different FACETS with LEAST_RELEVANT to MOST_RELEVANT documents. Of
    queries with the same documents the first stands.
    """
    words = _vocabulary()
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, document in enumerate(documents):
        tags = sorted(
            tag for tag in document.tags if tag in words and tag.partition("::")[0] in FACETS
        )
        for first, second in itertools.combinations(tags, 2):
            if first.partition("::")[0] != second.partition("::")[0]:
                rows[first, second].append(row)
    kept: dict[tuple[int, ...], tuple[str, str]] = {}
    for pair, relevant in sorted(rows.items()):
        if LEAST_RELEVANT <= len(relevant) <= MOST_RELEVANT:
            kept.setdefault(tuple(relevant), pair)
    found = [
        Query(f"{words[pair[0]]}, {words[pair[1]]}", pair, relevant)
        for relevant, pair in kept.items()
    ]
    random.Random(0).shuffle(found)  # noqa: S311 - a fixed order, no secret
    return found[:MEASURED], found[MEASURED:]


def collection(
    documents: Sequence[Package], chosen: Sequence[Query], name: str = "debian"
) -> JudgedCollection:
    """These queries on these documents, by ENCODERS; from the cache if it has them."""
    return JudgedCollection(
        name,
        {
            each: embedded("e5-query" if each == "e5" else each, [one.text for one in chosen])
            for each in ENCODERS
        },
        {each: embedded(each, [one.text for one in documents]) for each in ENCODERS},
        [(query, row, 1) for query, one in enumerate(chosen) for row in one.relevant],
    )


def describe(
    documents: Sequence[Package], measured: Sequence[Query], others: Sequence[Query]
) -> str:
    """The size of the collection."""
    relevant = sorted(len(one.relevant) for one in measured)
    tags = Counter(tag for one in measured for tag in one.tags)
    return (
        f"{len(documents):,} documents, {len(measured)} queries to measure with {relevant[0]} to "
        f"{relevant[-1]} relevant documents (median {relevant[len(relevant) // 2]}) of "
        f"{len(tags)} tags, {len(others):,} other queries"
    )


def _index(kind: str) -> Iterator[Mapping[str, str]]:
    """The stanzas of the index of this kind, as fields. Raises Missing."""
    if shutil.which("apt-get") is None:
        raise Missing(INSTALL)
    english = ("-o", "Acquire::Languages=en")
    listed = _output(
        "apt-get", *english, "indextargets", "--format", "$(FILENAME)", f"Created-By: {kind}"
    )
    for path in listed.split():
        yield from _stanzas(_output("/usr/lib/apt/apt-helper", "cat-file", path))


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _stanzas(text: str) -> Iterator[Mapping[str, str]]:
    for stanza in re.split(r"\n\n+", text):
        found = re.finditer(r"^([\w-]+): ?(.*(?:\n[ \t].*)*)", stanza, re.MULTILINE)
        if fields := {each[1]: each[2] for each in found}:
            yield fields


def _vocabulary() -> Mapping[str, str]:
    """By tag, 'facet: tag' in the words of the vocabulary. Raises Missing."""
    if not VOCABULARY.exists():
        raise Missing(INSTALL)
    stanzas = list(_stanzas(VOCABULARY.read_text(encoding="utf-8")))
    first = {id(each): each["Description"].partition("\n")[0] for each in stanzas}
    facets = {each["Facet"]: first[id(each)] for each in stanzas if "Facet" in each}
    return {
        each["Tag"]: f"{facets[each['Tag'].partition('::')[0]]}: {first[id(each)]}"
        for each in stanzas
        if "Tag" in each and not each["Tag"].endswith("TODO")
    }


def main() -> None:
    """Embed everything once."""
    command = argparse.ArgumentParser(
        prog="python -m benchmarks.debian",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("encoders", nargs="*", default=ENCODERS, help="default: all three")
    encoders = command.parse_args().encoders
    try:
        documents = packages()
        measured, others = queries(documents)
        print(describe(documents, measured, others))
        for name in encoders:
            embedded(name, [one.text for one in documents])
        for chosen in (measured, others):
            collection(documents, chosen)
    except Missing as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
