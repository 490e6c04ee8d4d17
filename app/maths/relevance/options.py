"""The eight ways to search after a change of encoder, as rankings that can be measured.

- keep: old queries in the old store.
- bridge: new queries, translated into the old space, in the old store.
- cascade: the first candidates of the bridge, whose stored vectors are translated and scored by
  the new query.
- fuse: the first candidates of keep and of the bridge, by the weighted sum of their old and their
  translated scores.
- native-cascade, native-fuse: the candidates of cascade or fuse; the first n of them are scored by
  their own vectors of the new encoder, in native-fuse with the old scores (`native.blend`).
- translate: new queries among all stored vectors, translated.
- re-embed: new queries among all documents, embedded anew.

All scores are cosines of the vectors as a store holds them. Documents of equal score have any
order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from app.maths.geometry.space import COSINE_ROWS
from app.maths.quality.metrics import MAX_COSINES
from app.maths.relevance.fuse_weight import NATIVE_WEIGHT, trust_of
from app.maths.relevance.native import blend, standardised
from app.maths.relevance.ranking_metrics import DEPTH, Judgements, measure_ranking

SearchOption = Literal[
    "keep",
    "bridge",
    "cascade",
    "fuse",
    "native-cascade",
    "native-fuse",
    "translate",
    "re-embed",
]
SEARCH_OPTIONS: tuple[SearchOption, ...] = get_args(SearchOption)

#: Candidates of the old store that cascade and fuse score anew.
DEFAULT_CANDIDATES = 100

#: Candidates of each query that get a native vector.
NATIVE_COUNT = 100

_CASCADE = "bridged_queries", "old_documents", "new_queries", "translated_documents"
#: The vectors of `SearchVectors` that each option reads.
NEEDED: dict[SearchOption, tuple[str, ...]] = {
    "keep": ("old_queries", "old_documents"),
    "bridge": ("bridged_queries", "old_documents"),
    "cascade": _CASCADE,
    "fuse": ("old_queries", *_CASCADE),
    "native-cascade": (*_CASCADE, "new_documents"),
    "native-fuse": ("old_queries", *_CASCADE, "new_documents"),
    "translate": ("new_queries", "translated_documents"),
    "re-embed": ("new_queries", "new_documents"),
}

#: The options that read native vectors of candidates.
NATIVE_OPTIONS: tuple[SearchOption, ...] = ("native-cascade", "native-fuse")

#: The searches of one store, whose queries and documents are the two vectors that they need; the
#: other options order candidates of these.
WHOLE_SEARCHES: tuple[SearchOption, ...] = ("keep", "bridge", "translate", "re-embed")


@dataclass(frozen=True, eq=False)
class SearchVectors:
    """The vectors of q queries and m documents; None: not available.

    old_queries, old_documents    (q, d_x), (m, d_x) by the old encoder
    new_queries, new_documents    (q, d_y), (m, d_y) by the new encoder
    bridged_queries               (q, d_x) the new queries, translated into the old space
    translated_documents          (m, d_y) the old documents, translated into the new space
    """

    old_queries: Float32[Tensor, "q dx"] | None = None
    old_documents: Float32[Tensor, "m dx"] | None = None
    new_queries: Float32[Tensor, "q dy"] | None = None
    new_documents: Float32[Tensor, "m dy"] | None = None
    bridged_queries: Float32[Tensor, "q dx"] | None = None
    translated_documents: Float32[Tensor, "m dy"] | None = None

    @property
    def options(self) -> list[SearchOption]:
        """The options whose vectors are all available."""
        return [
            option
            for option in SEARCH_OPTIONS
            if all(getattr(self, name) is not None for name in NEEDED[option])
        ]


@dataclass(frozen=True, eq=False)
class SearchMetrics:
    """The MEASURES (n, 2) of each option but fuse, and of fuse by each of `weights`."""

    options: dict[SearchOption, Float64[Tensor, "n 2"]]
    fused: list[Float64[Tensor, "n 2"]]
    weights: tuple[float, ...]


def measure_options(
    vectors: SearchVectors,
    judged: Judgements,
    *,
    weights: Sequence[float],
    default_weight: float = 0.0,
    native_weight: float = NATIVE_WEIGHT,
    candidates: int = DEFAULT_CANDIDATES,
    on_progress: Callable[[int], object] = lambda _: None,
) -> SearchMetrics:
    """The measures of every option whose vectors are available, over the judged queries.

    weights         of the new scores in fuse, each in [0, 1]
    default_weight  the one of `weights` whose scores decide which candidates of native-fuse get a
                    native vector
    native_weight   of the native scores where old ones count too
    candidates      of each search of the old store, at least 1; more than m count as m
    on_progress     called before each block of queries with the number of queries that are done

    Queries run in blocks, so that one table of cosines has at most MAX_COSINES numbers.
    """
    searches = {name: NEEDED[name] for name in WHOLE_SEARCHES if name in vectors.options}
    unit = {
        name: torch.nn.functional.normalize(getattr(vectors, name), dim=1)
        for name in {documents for _, documents in searches.values()}
    }
    depth = min(candidates, judged.size)
    parts: dict[SearchOption, list[Tensor]] = {}
    fused: list[list[Tensor]] = [[] for _ in weights]
    natives = [option for option in NATIVE_OPTIONS if option in vectors.options]
    step = max(1, min(COSINE_ROWS, MAX_COSINES // judged.size))
    for start in range(0, len(judged), step):
        on_progress(start)
        rows = judged.rows[start : start + step]
        cosines = {
            name: torch.nn.functional.normalize(getattr(vectors, queries)[rows], dim=1)
            @ unit[documents].T
            for name, (queries, documents) in searches.items()
        }
        rankings = {name: _first(each, DEPTH) for name, each in cosines.items()}
        bases: dict[SearchOption, tuple[Tensor, Tensor]] = {}
        if "cascade" in vectors.options:
            first = _first(cosines["bridge"], depth)
            scores = cosines["translate"].gather(1, first)
            rankings["cascade"] = _order(first, scores)
            bases["native-cascade"] = first, scores.double()
        for option, ranking in rankings.items():
            parts.setdefault(option, []).append(measure_ranking(ranking, judged, start))
        if "fuse" in vectors.options:
            ids, repeated, by_weight = _fuse_scores(cosines, depth, weights)
            for place, scores in enumerate(by_weight):
                ranking = _order(ids, scores, missing=repeated)
                fused[place].append(measure_ranking(ranking, judged, start))
            if "native-fuse" in natives:
                bases["native-fuse"] = ids, by_weight[weights.index(default_weight)]
        for option in natives:
            ranking = _native_ranking(
                cosines["re-embed"],
                cosines["translate"],
                cosines["keep"] if option == "native-fuse" else None,
                *bases[option],
                native_weight,
                trust_of(default_weight, native_weight),
            )
            parts.setdefault(option, []).append(measure_ranking(ranking, judged, start))
    return SearchMetrics(
        {option: torch.cat(parts[option]) for option in SEARCH_OPTIONS if option in parts},
        [torch.cat(blocks) for blocks in fused if blocks],
        tuple(weights),
    )


def _fuse_scores(
    cosines: Mapping[SearchOption, Float32[Tensor, "c m"]], depth: int, weights: Sequence[float]
) -> tuple[Int64[Tensor, "c s"], Bool[Tensor, "c s"], list[Float64[Tensor, "c s"]]]:
    """The candidates of keep and of the bridge, which of them repeat an earlier one, and their
    fused scores for each weight: -inf where one repeats.
    """
    both = (_first(cosines["keep"], depth), _first(cosines["bridge"], depth))
    ids, repeated = _join(*both, size=cosines["keep"].shape[1])
    new, old = (
        standardised(cosines[name].gather(1, ids).double(), ~repeated)
        for name in ("translate", "keep")
    )
    tables = [
        (weight * new + (1.0 - weight) * old).masked_fill(repeated, -torch.inf)
        for weight in weights
    ]
    return ids, repeated, tables


def _native_ranking(
    new: Float32[Tensor, "c m"],
    translated: Float32[Tensor, "c m"],
    old: Float32[Tensor, "c m"] | None,
    ids: Int64[Tensor, "c s"],
    base: Float64[Tensor, "c s"],
    weight: float,
    trust: float,
) -> Int64[Tensor, "c s"]:
    """The candidates of each query, the first NATIVE_COUNT with native scores; -1 for missing ones.

    new, translated, old  cosines of all documents by the new encoder, of their translations, and by
                          the old encoder where they count
    """
    counted = base != -torch.inf
    first = _first(base, NATIVE_COUNT)
    native = torch.full_like(base, torch.nan)
    native.scatter_(1, first, new.gather(1, ids.gather(1, first)).double())
    guess = translated.gather(1, ids).double().masked_fill(~counted, torch.nan)
    known = None if old is None else old.gather(1, ids).double()
    scores = blend(native, guess, known, weight=weight, trust=trust)
    return _order(ids, scores.nan_to_num(nan=-torch.inf), missing=~counted)


def _first(scores: Float32[Tensor, "c m"], depth: int) -> Int64[Tensor, "c r"]:
    return scores.topk(min(depth, scores.shape[1]), dim=1).indices


def _order(
    ids: Int64[Tensor, "c r"],
    scores: Float[Tensor, "c r"],
    missing: Bool[Tensor, "c r"] | None = None,
) -> Int64[Tensor, "c r"]:
    """The candidates by descending score; -1 for those that are missing."""
    order = scores.sort(dim=1, descending=True, stable=True).indices
    ranking = ids if missing is None else ids.masked_fill(missing, -1)
    return ranking.gather(1, order)


def _join(
    first: Int64[Tensor, "c r"], second: Int64[Tensor, "c r"], *, size: int
) -> tuple[Int64[Tensor, "c s"], Bool[Tensor, "c s"]]:
    """Both lists of candidates in one, and which of them repeat an earlier one."""
    in_first = first.new_zeros(len(first), size, dtype=torch.bool).scatter_(1, first, value=True)
    ids = torch.cat([first, second], dim=1)
    repeated = torch.cat([torch.zeros_like(first, dtype=torch.bool), in_first.gather(1, second)], 1)
    return ids, repeated
