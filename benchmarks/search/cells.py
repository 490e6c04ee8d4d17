"""One collection, pair of encoders and number of anchors: what each setting finds.

The functions of the service make the maps, and score the candidates of exact searches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.relevance.fuse_weight import (
    default_weight,
    held_out_cosine,
    native_weight,
    trust_of,
)
from app.maths.relevance.native import blend
from app.maths.relevance.options import DEFAULT_CANDIDATES
from app.maths.relevance.ranking_metrics import Judgements, measure_ranking
from app.maths.translators import methods
from app.maths.translators.translator import apply
from app.search.scoring import USUAL_NATIVE

#: whether the old encoder runs, and whether the texts exist
Situation = Literal["old and texts", "texts", "old", "neither"]
SITUATIONS: tuple[Situation, ...] = ("old and texts", "texts", "old", "neither")

#: texts of a query by default in process, at an endpoint, and in EmbedFlow
COUNTS = (USUAL_NATIVE[0], USUAL_NATIVE[1], 50)
ANCHORS = (0, 100, 300, 1_000)
WEIGHTS = (0.15, 0.3, 0.5, 0.7, 0.85, 1.0)
#: begins the name of a value on the draws that peers were measured on
SAME = "same draws, "
#: most of a collection that becomes anchors
MAX_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class Side:
    """An encoder on a collection: its vectors, and the cosines (q, m) of the judged queries."""

    documents: Tensor
    queries: Tensor
    cosines: Tensor
    ranks: Tensor | None


@dataclass(frozen=True, eq=False)
class Tables:
    """The cosines (q, m) that a search may read; None: not without anchors."""

    old: Tensor
    native: Tensor
    translated: Tensor | None = None
    bridged: Tensor | None = None


def unit_cosines(queries: Tensor, documents: Tensor) -> Tensor:
    """Cosines (q, m)."""
    unit = torch.nn.functional.normalize
    return unit(queries.double(), dim=1) @ unit(documents.double(), dim=1).T


def rank(
    tables: Tables,
    *,
    runs: bool,
    texts: int,
    weight: float,
    trust: float,
    depth: int = DEFAULT_CANDIDATES,
) -> Tensor:
    """The candidates of each query (q, c) in order, as a store's search has them; -1 for none.

    runs    the old encoder's scores count, and its candidates
    texts   candidates that get a native score
    weight  of native scores beside old ones
    trust   as `blend` takes it
    depth   candidates of each search of the store
    """
    searches = [tables.old] * runs + [each for each in [tables.bridged] if each is not None]
    ids = torch.cat([first(each, depth) for each in searches], dim=1)
    seen = torch.zeros_like(tables.old).scatter_(1, ids[:, :depth], 1.0).gather(1, ids).bool()
    seen[:, :depth] = False
    guesses = tables.old if tables.translated is None else tables.translated
    guess = guesses.gather(1, ids).masked_fill(seen, torch.nan)
    old = tables.old.gather(1, ids) if runs else None
    native = torch.full_like(guess, torch.nan)

    def score() -> Tensor:
        return blend(native, guess, old, weight=weight, trust=trust).nan_to_num(nan=-torch.inf)

    if texts:
        chosen = first(score(), texts)
        native.scatter_(1, chosen, tables.native.gather(1, ids.gather(1, chosen)))
    scores = score()
    order = scores.sort(dim=1, descending=True, stable=True).indices
    return ids.masked_fill(scores == -torch.inf, -1).gather(1, order)


def first(scores: Tensor, count: int) -> Tensor:
    """The places of the best, best first."""
    return scores.topk(min(count, scores.shape[1]), dim=1).indices


def ndcg(ranking: Tensor, judged: Judgements) -> float:
    """The mean nDCG@10."""
    return float(measure_ranking(ranking[:, :10], judged)[:, 0].mean())


def fitted(x: Tensor, y: Tensor, method: str | None = None) -> Callable[[Tensor], Tensor]:
    """The map that searches take, from anchors x to y."""
    method = method or methods.usual_method(len(x))
    options = methods.resolve(method, {}, anchors=len(x))
    made = methods.fit(method, fit_space(x), fit_space(y), options)
    return lambda rows: apply(made, rows).vectors.double()


def settings_of(
    tables: Tables, judged: Judgements, cosine: float | None, difference: float | None
) -> dict[str, float]:
    """The nDCG@10 of each situation's settings, by names that begin with the situation's.

    cosine      `held_out_cosine`; None without anchors
    difference  of the encoders by the comparison; None: it cannot be made
    """
    found: dict[str, float] = {}

    def measure(name: str, weight: float, share: float, texts: int) -> None:
        for situation, runs, count in (("old and texts", True, texts), ("old", True, 0)):
            if cosine is None and not count:
                continue
            # Without a native score, `blend` gives the guesses the weight that trust leaves them.
            trust = trust_of(share, weight)
            ranked = rank(tables, runs=runs, texts=count, weight=weight, trust=trust)
            found[f"{situation}: {name}"] = ndcg(ranked, judged)

    for name, known, texts in (
        ("first", None, COUNTS[0]),
        ("default", difference, COUNTS[0]),
        ("default, 50 texts", difference, 50),
    ):
        share = 1.0 if cosine is None else default_weight(cosine, known)
        measure(name, native_weight(known), share, texts)
    for weight in WEIGHTS:
        measure(f"weight {weight}", weight, weight, COUNTS[0])
    for count in COUNTS[1:]:
        for weight in (0.5, 0.85, 1.0):
            ranked = rank(tables, runs=True, texts=count, weight=weight, trust=1.0)
            found[f"old and texts: {count} texts, weight {weight}"] = ndcg(ranked, judged)
    found["old and texts: EmbedFlow"] = ndcg(
        rank(
            Tables(tables.old, tables.native), runs=True, texts=50, weight=1.0, trust=1.0, depth=50
        ),
        judged,
    )
    if cosine is not None:
        for count in (0, *COUNTS):
            ranked = rank(tables, runs=False, texts=count, weight=1.0, trust=1.0)
            found[f"texts: {count} texts" if count else "neither: default"] = ndcg(ranked, judged)
        found["texts: default"] = found[f"texts: {COUNTS[0]} texts"]
        assert tables.bridged is not None
        assert tables.translated is not None
        for name, each in (("bridge", tables.bridged), ("translate", tables.translated)):
            found[f"neither: {name}"] = ndcg(first(each, 10), judged)
    return found


def draws_of(size: int, anchors: int, draws: int) -> Iterator[tuple[int, Tensor]]:
    """Rows of anchors, drawn at random."""
    count = min(anchors, int(MAX_SHARE * size))
    for draw in range(draws):
        generator = torch.Generator().manual_seed(100 + draw)
        yield draw, torch.randperm(size, generator=generator)[:count]


def measure_pair(
    old: Side,
    new: Side,
    judged: Judgements,
    anchors: int,
    draws: int,
    difference: float | None,
    more: Callable[[int, Tables], Mapping[str, float]],
) -> dict[str, float]:
    """The mean nDCG@10 of each setting over the draws of anchors.

    more  the nDCG@10 of peers by their names, for a draw and its tables
    """
    if not anchors:
        return settings_of(Tables(old.cosines, new.cosines), judged, None, difference)
    sums: dict[str, list[float]] = defaultdict(list)
    for draw, rows in draws_of(judged.size, anchors, draws):
        x, y = old.documents[rows], new.documents[rows]
        asked = new.queries[judged.rows]
        tables = Tables(
            old.cosines,
            new.cosines,
            unit_cosines(asked, fitted(x, y)(old.documents)),
            unit_cosines(fitted(y, x)(asked), old.documents),
        )
        cosine = held_out_cosine(x, y)
        values = settings_of(tables, judged, cosine, difference)
        linear = unit_cosines(fitted(y, x, "graded")(asked), old.documents)
        values["neither: graded bridge"] = ndcg(first(linear, 10), judged)
        others = more(draw, tables)
        # Peers are measured on the first draws.
        same = {f"{SAME}{name}": each for name, each in values.items() if others}
        for name, value in {**values, **others, **same, "cosine": cosine}.items():
            sums[name].append(value)
    return {name: sum(each) / len(each) for name, each in sums.items()}
