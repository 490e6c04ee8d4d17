"""Sentences of real corpora, in the order of their texts."""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import DATA, Missing

FEWEST_WORDS, MAX_WORDS = 4, 40

ORIGIN = (
    "banking77/*.csv (PolyAI-LDN/task-specific-datasets), cranfield/cranfield.json, trec/*.label, "
    "stsb-multi-mt/stsb-en-*.csv (PhilipMay/stsb-multi-mt), tatoeba/*.eng (facebookresearch/LASER) "
    "and corpora/*.zip (nltk_data: genesis, inaugural, masc_tagged, movie_reviews, "
    "sentence_polarity, state_union, subjectivity)"
)


@dataclass(frozen=True)
class Sentence:
    """One sentence. text: the document that it is from; neighbours follow each other."""

    corpus: str
    text: str
    line: str


def sentences() -> list[Sentence]:
    """Different sentences of all corpora. Raises Missing."""
    if not (DATA / "corpora").is_dir():
        raise Missing(f"{DATA}: {ORIGIN}. Or set ANCHORAGE_DATA.")
    found: dict[str, Sentence] = {}
    for each in (*_tables(), *_archives()):
        words = re.findall(r"\w+", each.line.casefold())
        if len(words) >= FEWEST_WORDS and len(each.line.split()) <= MAX_WORDS:
            found.setdefault(" ".join(words), each)
    return list(found.values())


def _tables() -> Iterator[Sentence]:
    for path in sorted((DATA / "banking77").glob("*.csv")):
        for line, kind in list(_csv(path))[1:]:
            yield Sentence("banking77", kind, " ".join(line.split()))
    for path in sorted((DATA / "trec").glob("*.label")):
        for line in path.read_text(encoding="latin-1").splitlines():
            kind, _, question = line.partition(" ")
            yield Sentence("trec", kind, question)
    for path in sorted((DATA / "stsb-multi-mt").glob("stsb-en-*.csv")):
        for first, second, _ in _csv(path):
            yield Sentence("stsb", path.stem, first)
            yield Sentence("stsb", path.stem, second)
    for path in sorted((DATA / "tatoeba").glob("*.eng")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield Sentence("tatoeba", path.name, line)
    raw = json.loads((DATA / "cranfield" / "cranfield.json").read_text(encoding="utf-8"))
    for each in raw["docs"]:
        for part in dict.fromkeys(re.split(r"\s+\.+(?:\s+|$)", each["text"].strip())):
            yield Sentence("cranfield", str(each["id"]), f"{part.strip(' .')} .")


def _csv(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.reader(file)


def _archives() -> Iterator[Sentence]:
    for path in sorted((DATA / "corpora").glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if _is_text(path.stem, name):
                    text = archive.read(name).decode("utf-8", "replace")
                    for line in _lines(path.stem, text):
                        yield Sentence(path.stem, Path(name).name, line)


def _is_text(corpus: str, name: str) -> bool:
    if name.endswith("/") or "README" in name or name.endswith("categories.txt"):
        return False
    return corpus != "genesis" or "english" in name


def _lines(corpus: str, text: str) -> Iterator[str]:
    """The sentences of a text: a line each where the corpus has them so."""
    if corpus == "masc_tagged":
        text = re.sub(r"(\S+)_\S+", r"\1", text)
    if corpus in ("movie_reviews", "sentence_polarity", "subjectivity", "masc_tagged"):
        parts = text.split("\n")
    else:
        parts = re.split(r"(?<=[.!?])\s+(?=[A-Z])|\n\s*\n", text)
    for part in parts:
        yield " ".join(part.split())
