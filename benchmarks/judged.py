"""Small collections with judgements, read from the files in which they are handed on.

    python -m benchmarks.judged FOLDER

reads MED.ALL, MED.QRY, MED.REL, TIME.ALL, TIME.QUE, TIME.REL, LISA (its numbered files, joined),
LISA.QUE and LISA.REL of the University of Glasgow's test collections, ori_pqal.json of PubMedQA,
xquad.en.json of XQuAD, test.docs, test.vid-desc.queries and test.3-2-1.qrel of NFCorpus, and
tatoeba.deu-eng.deu and .eng of LASER, and keeps what it found as JSON in
$ANCHORAGE_BENCHMARK_CACHE. Texts are cut at 90 words, like those of Cranfield. LISA and NFCorpus
keep relevant documents and as many others, drawn at random, that they have 1,500; of more than 300
queries, 300 are drawn.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.maths.relevance.ranking_metrics import Judgements, collect
from benchmarks.common import CACHE, Missing
from benchmarks.cranfield import CRANFIELD

FOLDER = CACHE / "judged"
WORDS = 90
DOCUMENTS, QUERIES = 1_500, 300

Texts = Sequence[tuple[str, str]]
Relevance = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class JudgedTexts:
    """relevance: (query row, document row, grade)."""

    name: str
    documents: Sequence[str]
    queries: Sequence[str]
    relevance: Sequence[tuple[int, int, int]]


def load(name: str) -> JudgedTexts:
    """Raises Missing."""
    path = CRANFIELD / "cranfield.json" if name == "cranfield" else FOLDER / f"{name}.json"
    if not path.exists():
        raise Missing(
            f"{path} is missing: `python -m benchmarks.judged --help` says how to get it."
        )
    found = json.loads(path.read_text(encoding="utf-8"))
    queries = {each["id"]: row for row, each in enumerate(found["queries"])}
    documents = {each["id"]: row for row, each in enumerate(found["docs"])}
    grades = {(queries[q], documents[d]): grade for q, d, grade in found["relevance"]}
    return JudgedTexts(
        name,
        [each["text"] for each in found["docs"]],
        [each["text"] for each in found["queries"]],
        sorted((q, d, grade) for (q, d), grade in grades.items()),
    )


def judgements_of(texts: JudgedTexts) -> Judgements:
    """The judgements of a collection, as the measures of rankings take them."""
    relevance = torch.tensor(texts.relevance)
    return collect(
        relevance[:, 0], relevance[:, 1], relevance[:, 2].double(), size=len(texts.documents)
    )


def _read(folder: Path, name: str) -> str:
    path = folder / name
    if not path.exists():
        raise Missing(f"{path} is missing.")
    return path.read_text(encoding="latin-1").replace("\r", "")


def _smart(text: str) -> Texts:
    """Items of SMART's format: `.I number`, `.W`, and the text."""
    found = []
    for part in re.split(r"^\.I ", text, flags=re.MULTILINE)[1:]:
        number, _, rest = part.partition("\n")
        found.append((number.strip(), rest.partition(".W")[2]))
    return found


def med(folder: Path) -> tuple[Texts, Texts, Relevance]:
    """1,033 medical abstracts and 30 questions."""
    judged = [line.split() for line in _read(folder, "MED.REL").splitlines() if line.strip()]
    documents, queries = (_smart(_read(folder, name)) for name in ("MED.ALL", "MED.QRY"))
    # Some copies have a column of zeros, as TREC has.
    relevance = [(each[0], each[2] if each[1] == "0" else each[1]) for each in judged]
    return documents, queries, relevance


def time(folder: Path) -> tuple[Texts, Texts, Relevance]:
    """423 articles of a magazine of 1963 and 83 questions."""
    parts = re.split(r"^\*TEXT ", _read(folder, "TIME.ALL"), flags=re.MULTILINE)[1:]
    articles = [part.partition("\n")[2].split("*STOP")[0].lower() for part in parts]
    asked = re.split(r"^\*FIND\s+", _read(folder, "TIME.QUE"), flags=re.MULTILINE)[1:]
    queries = [part.split("*STOP")[0].lower().split(maxsplit=1) for part in asked]
    judged = [line.split() for line in _read(folder, "TIME.REL").splitlines() if line.strip()]
    return (
        [(str(number), text) for number, text in enumerate(articles, 1)],
        [(number, text) for number, text in queries],
        [(query, document) for query, *documents in judged for document in documents],
    )


def lisa(folder: Path) -> tuple[Texts, Texts, Relevance]:
    """Abstracts of library science and 35 long requests."""
    parts = re.split(r"^Document\s+", _read(folder, "LISA"), flags=re.MULTILINE)[1:]
    split = [part.partition("\n") for part in parts]
    documents = [(number.strip(), text.split("****")[0].lower()) for number, _, text in split]
    parts = [part.strip() for part in _read(folder, "LISA.QUE").split("#") if part.strip()]
    queries = [part.partition("\n") for part in parts]
    relevance = [
        (part.split()[0], document)
        for part in _read(folder, "LISA.REL").split("Query")[1:]
        for document in part.partition("Refs:")[2].split()
        if document != "-1"
    ]
    asked = [(number.strip(), text.lower()) for number, _, text in queries]
    return _drawn(documents, relevance), asked, relevance


def _drawn(documents: Texts, relevance: Sequence[tuple[str, str]]) -> Texts:
    """At most DOCUMENTS, relevant ones first."""
    relevant = {document for _, document in relevance}
    order = list(documents)
    random.Random(0).shuffle(order)  # noqa: S311
    return sorted(order, key=lambda each: each[0] not in relevant)[:DOCUMENTS]


def pubmedqa(folder: Path) -> tuple[Texts, Texts, Relevance]:
    """1,000 abstracts, and the question that each answers."""
    found = json.loads((folder / "ori_pqal.json").read_text(encoding="utf-8"))
    return (
        [(name, " ".join(each["CONTEXTS"])) for name, each in found.items()],
        [(name, each["QUESTION"]) for name, each in found.items()],
        [(name, name) for name in found],
    )


def xquad(folder: Path) -> tuple[Texts, Texts, Relevance]:
    """240 paragraphs of Wikipedia and 1,190 questions that people asked about them."""
    found = json.loads((folder / "xquad.en.json").read_text(encoding="utf-8"))
    paragraphs = [each for article in found["data"] for each in article["paragraphs"]]
    asked = [(row, each) for row, part in enumerate(paragraphs) for each in part["qas"]]
    return (
        [(str(row), part["context"]) for row, part in enumerate(paragraphs)],
        [(each["id"], each["question"]) for _, each in asked],
        [(each["id"], str(row)) for row, each in asked],
    )


def nfcorpus(folder: Path) -> tuple[Texts, Texts, Relevance]:
    """Medical abstracts, of which this copy has no stop words, and what videos are about."""
    documents, queries = (
        [(number, text) for number, _, text in (line.partition("\t") for line in lines)]
        for lines in (
            (folder / name).read_text(encoding="utf-8").splitlines()
            for name in ("test.docs", "test.vid-desc.queries")
        )
    )
    judged = [line.split() for line in _read(folder, "test.3-2-1.qrel").splitlines()]
    asked = {number for number, _ in queries}
    # Grade 1 is of documents that share a topic with the video's page.
    relevance = [(each[0], each[2]) for each in judged if each[0] in asked and each[3] != "1"]
    return _drawn(documents, relevance), queries, relevance


def tatoeba(folder: Path) -> tuple[Texts, Texts, Relevance]:
    """1,000 English sentences and their German translations, which are the queries."""
    german, english = (
        (folder / f"tatoeba.deu-eng.{each}").read_text(encoding="utf-8").splitlines()
        for each in ("deu", "eng")
    )
    documents = [(text, text) for text in dict.fromkeys(english)]
    pairs = dict(zip(german, english, strict=True))
    return documents, [(text, text) for text in pairs], list(pairs.items())


READERS: Mapping[str, Callable[[Path], tuple[Texts, Texts, Relevance]]] = {
    "med": med,
    "time": time,
    "lisa": lisa,
    "pubmedqa": pubmedqa,
    "xquad": xquad,
    "nfcorpus": nfcorpus,
    "tatoeba": tatoeba,
}


def convert(folder: Path, name: str) -> str:
    """Keep a collection, and describe it. Raises Missing."""
    documents, queries, relevance = READERS[name](folder)
    known = {number for number, _ in documents}
    judged = [pair for pair in relevance if pair[1] in known]
    asked = {query for query, _ in judged}

    def texts(items: Texts) -> list[dict[str, str]]:
        return [{"id": each, "text": " ".join(text.split()[:WORDS])} for each, text in items]

    kept = [each for each in queries if each[0] in asked]
    kept = kept if len(kept) <= QUERIES else random.Random(0).sample(kept, QUERIES)  # noqa: S311
    asked = {number for number, _ in kept}
    value: dict[str, list[Any]] = {
        "docs": texts(documents),
        "queries": texts(kept),
        "relevance": [(query, document, 1) for query, document in judged if query in asked],
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return (
        f"{name}: {len(documents):,} documents, {len(kept):,} queries, "
        f"{len(value['relevance']):,} judgements"
    )


def main() -> None:
    """Convert the collections of a folder."""
    command = argparse.ArgumentParser(
        prog="python -m benchmarks.judged",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("folder", type=Path)
    folder = command.parse_args().folder
    try:
        for name in READERS:
            print(convert(folder, name))
    except (Missing, FileNotFoundError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
