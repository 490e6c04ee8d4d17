"""Do anchors of another corpus, of another role, and `prefer` make search results better or worse?

    python -m benchmarks.foreign_anchors [foreign] [roles] [prefer]

Writes benchmarks/results/foreign_anchors.json.

Cranfield (1,400 documents, 225 queries, human judgements) by three encoders of different families
from ANCHORAGE_DATA/cranfield, and 1,460 passages of other public corpora (nltk_data: masc_tagged,
movie_reviews, state_union, inaugural, 90 words each) by the same encoders, from --foreign:
`foreign-use.npy`, `foreign-e5p.npy`, `foreign-minilm.npy`, row i the same text. All ordered pairs,
nDCG@10 of bridge, translate, cascade (100 candidates) and fuse (weight .25), graded with its
defaults.

foreign  own: anchors of Cranfield alone; both: and the 1,460; weighed: both, with the weights that
         a sample of 500 other documents of Cranfield gives.
roles    300 documents as anchors, and half of the queries; judged on the other half. `role`: with
         weights by the role of what is translated, queries for the bridge and documents otherwise.
prefer   the method that `auto` begins with for each `prefer`, 300 and 1,000 documents as anchors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from app.maths.anchors.foreign import choose_weights, compare_with_store
from app.maths.geometry.space import fit_space
from app.maths.quality.candidates import DEFAULT_CANDIDATE
from app.maths.relevance.options import SearchVectors, measure_options
from app.maths.relevance.ranking_metrics import Judgements, collect
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.common import DATA, RESULTS, Missing, merged, parser, read, rounded, write

ENCODERS = ("use", "e5", "minilm")
SECTIONS = ("foreign", "roles", "prefer")
SHOWN = ("bridge", "translate", "cascade", "fuse")
FUSE_WEIGHT = 0.25
SIZES, SAMPLE, FOREIGN = (100, 300), 500, 1460
#: passages in the file of foreign vectors: the corpora after the 2,000 short sentences
FIRST_PASSAGE = 2000

Scores = dict[str, float]
console = Console(width=150)


class Cranfield:
    """Vectors of documents, queries and foreign passages by each encoder, and judgements."""

    def __init__(self, foreign: Path) -> None:
        folder = DATA / "cranfield"
        if not folder.exists():
            raise Missing(f"{folder} is missing: vectors of the Cranfield collection.")
        texts = json.loads((folder / "cranfield.json").read_text(encoding="utf-8"))
        queries = {str(each["id"]): row for row, each in enumerate(texts["queries"])}
        documents = {str(each["id"]): row for row, each in enumerate(texts["docs"])}
        judged = {
            (queries[str(query)], documents[str(document)]): float(max(0, grade))
            for query, document, grade in texts["relevance"]
            if str(query) in queries and str(document) in documents
        }
        self._judged = [(*pair, grade) for pair, grade in judged.items()]
        self.size = len(documents)
        self.documents = {name: _load(folder / f"{name}-docs.npy") for name in ENCODERS}
        self.queries = {name: _load(folder / f"{name}-queries.npy") for name in ENCODERS}
        names = {"use": "use", "e5": "e5p", "minilm": "minilm"}
        files = {name: foreign / f"foreign-{file}.npy" for name, file in names.items()}
        self.foreign = {
            name: _load(file)[FIRST_PASSAGE : FIRST_PASSAGE + FOREIGN]
            for name, file in files.items()
            if file.exists()
        }

    def judgements(self, queries: Tensor | None = None) -> Judgements:
        """The judgements of some queries; None: all."""
        chosen = None if queries is None else set(queries.tolist())
        rows = [each for each in self._judged if chosen is None or each[0] in chosen]
        query, document, grade = zip(*rows, strict=True)
        return collect(
            torch.tensor(query),
            torch.tensor(document),
            torch.tensor(grade, dtype=torch.float64),
            size=self.size,
        )


def _load(path: Path) -> Tensor:
    return torch.from_numpy(np.load(path, allow_pickle=False).astype(np.float32))


def search(
    data: Cranfield, old: str, new: str, bridge: Any, there: Any, judged: Judgements
) -> Scores:
    """nDCG@10 of each option, by a translator new -> old and one old -> new."""
    vectors = SearchVectors(
        data.queries[old],
        data.documents[old],
        data.queries[new],
        data.documents[new],
        apply(bridge, data.queries[new]).vectors,
        apply(there, data.documents[old]).vectors,
    )
    found = measure_options(vectors, judged, weights=(FUSE_WEIGHT,))
    scores = {str(name): float(each.ndcg.mean()) for name, each in found.options.items()}
    return {**scores, "fuse": float(found.fused[0].ndcg.mean())}


def fitted(x: Tensor, y: Tensor, weights: Tensor | None = None) -> Any:
    """The usual translator x -> y."""
    options = methods.resolve("graded", {}, anchors=len(x))
    return methods.fit("graded", fit_space(x, weights), fit_space(y, weights), options)


def measure_foreign(data: Cranfield, old: str, new: str, draw: int) -> Iterator[dict[str, Any]]:
    """One row for each number of anchors."""
    order = torch.randperm(data.size, generator=torch.Generator().manual_seed(draw))
    judged = data.judgements()
    for size in SIZES:
        own, sample = order[:size], data.documents[old][order[size : size + SAMPLE]]
        x, y = (torch.cat([data.documents[name][own], data.foreign[name]]) for name in (old, new))
        compared = compare_with_store(x, sample)
        assert compared is not None
        row: dict[str, Any] = {
            "anchors": size,
            "share": compared.share,
            "covered": compared.covered,
        }
        row["flagged_own"] = float(compared.foreign[:size].double().mean())
        row["flagged_foreign"] = float(compared.foreign[size:].double().mean())
        # As in the service, both directions share one choice.
        chosen = choose_weights(*((x, y) if old < new else (y, x)), foreign=compared.foreign)
        assert chosen is not None
        row["level"], weights = chosen.foreign_level, chosen.weights
        maps = {
            "own": (fitted(y[:size], x[:size]), fitted(x[:size], y[:size])),
            "both": (fitted(y, x), fitted(x, y)),
            "weighed": (fitted(y, x, weights), fitted(x, y, weights)),
        }
        row["ndcg"] = {name: search(data, old, new, *pair, judged) for name, pair in maps.items()}
        native = data.documents[new]
        row["cosine"] = {
            name: float(
                torch.cosine_similarity(apply(pair[1], data.documents[old]).vectors, native).mean()
            )
            for name, pair in maps.items()
        }
        yield row


def measure_roles(data: Cranfield, old: str, new: str, draw: int) -> Iterator[dict[str, Any]]:
    """300 documents, and half of the queries; judged on the other half."""
    generator = torch.Generator().manual_seed(draw)
    own = torch.randperm(data.size, generator=generator)[: SIZES[-1]]
    queries = torch.randperm(len(data.queries[old]), generator=generator)
    half = len(queries) // 2
    judged = data.judgements(queries[half:])
    x, y = (
        torch.cat([data.documents[name][own], data.queries[name][queries[:half]]])
        for name in (old, new)
    )
    is_query, only = torch.arange(len(x)) >= len(own), slice(0, len(own))
    there, back = choose_weights(x, y, of_role=~is_query), choose_weights(y, x, of_role=is_query)
    assert there is not None
    assert back is not None
    maps = {
        "documents": (fitted(y[only], x[only]), fitted(x[only], y[only])),
        "both": (fitted(y, x), fitted(x, y)),
        "role": (fitted(y, x, back.weights), fitted(x, y, there.weights)),
    }
    yield {
        "anchors": len(own),
        "level": 1.0,
        "level_bridge": 1.0,
        "ndcg": {name: search(data, old, new, *pair, judged) for name, pair in maps.items()},
    }


def measure_prefer(data: Cranfield, old: str, new: str, draw: int) -> Iterator[dict[str, Any]]:
    """The default method of each preference."""
    order = torch.randperm(data.size, generator=torch.Generator().manual_seed(draw))
    judged = data.judgements()
    for size in (300, 1000):
        x, y = (fit_space(data.documents[name][order[:size]]) for name in (old, new))
        found = {}
        for prefer in ("retrieval", "cosine"):
            method, given = DEFAULT_CANDIDATE[prefer]
            options = methods.resolve(method, given, anchors=size)
            pair = methods.fit(method, y, x, options), methods.fit(method, x, y, options)
            found[prefer] = search(data, old, new, *pair, judged)
        yield {"anchors": size, "ndcg": found}


MEASURES: dict[str, Callable[[Cranfield, str, str, int], Iterator[dict[str, Any]]]] = {
    "foreign": measure_foreign,
    "roles": measure_roles,
    "prefer": measure_prefer,
}


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the draws, and the differences from the first contestant with their errors."""
    names = list(rows[0]["ndcg"])
    table = np.array([[[row["ndcg"][n][o] for o in SHOWN] for n in names] for row in rows])
    difference = table - table[:, :1]
    error = difference.std(axis=0, ddof=1) / len(rows) ** 0.5
    more = {
        key: float(np.mean([row[key] for row in rows]))
        for key in rows[0]
        if isinstance(rows[0][key], float) and key != "anchors"
    }
    return {
        "anchors": rows[0]["anchors"],
        "draws": len(rows),
        "keep": rows[0]["ndcg"][names[0]]["keep"],
        "re-embed": rows[0]["ndcg"][names[0]]["re-embed"],
        **more,
        "cosine": {
            name: float(np.mean([row["cosine"][name] for row in rows]))
            for name in rows[0].get("cosine", {})
        },
        "ndcg": {
            name: dict(zip(SHOWN, table.mean(axis=0)[i].tolist(), strict=True))
            for i, name in enumerate(names)
        },
        "gain": {
            name: dict(zip(SHOWN, difference.mean(axis=0)[i].tolist(), strict=True))
            for i, name in enumerate(names)
        },
        "error": {
            name: dict(zip(SHOWN, error[i].tolist(), strict=True)) for i, name in enumerate(names)
        },
    }


def show(section: str, found: dict[str, list[dict[str, Any]]]) -> None:
    """Print one section."""
    names = list(next(iter(found.values()))[0]["ndcg"])
    table = Table("pair", "anchors", "keep", "re-embed", *(f"{n}" for n in names), title=section)
    for pair, rows in found.items():
        for row in rows:
            cells = [
                " ".join(f"{row['ndcg'][name][option]:.3f}" for option in SHOWN) for name in names
            ]
            ends = (f"{row['keep']:.3f}", f"{row['re-embed']:.3f}")
            table.add_row(pair, str(row["anchors"]), *ends, *cells)
    console.print(table)
    console.print(f"nDCG@10 of {', '.join(SHOWN)}")


def main() -> None:
    """Measure the sections, print and write."""
    arguments = parser(__doc__, RESULTS / "foreign_anchors.json")
    arguments.add_argument("sections", nargs="*", default=list(SECTIONS), metavar="SECTION")
    arguments.add_argument("--foreign", type=Path, default=DATA / "foreign", help="vectors of them")
    arguments.add_argument("--draws", type=int, default=5)
    arguments.add_argument("--old", nargs="*", default=ENCODERS, help="old encoders to measure")
    arguments.add_argument("--new", nargs="*", default=ENCODERS, help="new encoders to measure")
    options = arguments.parse_args()
    data = Cranfield(options.foreign)
    for section in options.sections:
        found = dict(read(options.json).get(section, {}))
        for old, new in permutations(ENCODERS, 2):
            if old not in options.old or new not in options.new:
                continue
            if section == "foreign" and not {old, new} <= set(data.foreign):
                console.print(f"{old} -> {new}: no foreign vectors in {options.foreign}")
                continue
            draws = [list(MEASURES[section](data, old, new, draw)) for draw in range(options.draws)]
            found[f"{old} -> {new}"] = [
                rounded(summed(list(rows)), 4) for rows in zip(*draws, strict=True)
            ]
            write(options.json, merged(read(options.json), section, found, SECTIONS))
        show(section, found)


if __name__ == "__main__":
    main()
