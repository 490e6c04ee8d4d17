"""What recall becomes when a share of the rows of a translated store is encoded again.

Held-out anchors show what that is worth: every anchor is a document, translated by a fit that saw
neither it nor a copy of it, and a query with its native vector. The index of a query holds the
other anchors of its fold:

    recall(s) = mean over queries of |top(native) & top(mixed_s)| / neighbours,

where `mixed_s` has the native vectors of a share s of the rows, and translations of the others. The
rows can be chosen by

- centrality: the mean cosine of the translation to its nearest anchors, all centred on the anchors'
  mean. Central rows come first, because searches find them most often
- confidence: the expected cosine of the translation (`app/maths/quality/confidence.py`), here by a
  regression on the other folds. The least sure rows come first
- random, which shows what a choice is worth.

Scores are cosines of vectors in the encoder's own units, as a store computes them. On Cranfield,
rows by confidence gain no more than random ones, not even by their true cosines: a vector that is
translated badly is also found seldom (docs/results/stores.md). Centrality is the hubness of
Radovanovic et al. 2010, who show that points near the mean are neighbours of many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.geometry.sampling import draw_uniformly
from app.maths.quality.confidence import (
    DISTANCE,
    LARGEST_COSINE,
    REGRESSION_FEATURES,
    features,
    fit_validated_ridge,
    moments,
    reference_and_translations,
    standardise,
)
from app.maths.quality.crossfit import cut_into_folds
from app.maths.quality.index_curves import overlap_to_y, y_to_overlap
from app.maths.quality.learning_curve import IntervalEstimate
from app.maths.quality.metrics import (
    DEFAULT_NEIGHBOURS,
    bootstrap_interval,
    cosine_blocks,
    shared_count,
    unit,
)
from app.maths.translators.methods import Options

#: Shares of the rows that a plan shows.
RE_EMBEDDED_SHARES = (0.01, 0.02, 0.05, 0.08, 0.1, 0.2)

#: Draws of the random choice.
RANDOM_CHOICES = 8

#: Fewer distinct anchors are too few to compare the choice with a random one.
FEWEST_CHOSEN_FROM = 20

#: Nearest anchors that the centrality is a mean over, and most anchors that are compared.
CENTRAL_ANCHORS, MAX_CENTRAL_ANCHORS = 10, 1024

#: How the rows to encode again are chosen.
RowChoice = Literal["centrality", "confidence"]
DEFAULT_ROW_CHOICE: RowChoice = "centrality"


@dataclass(frozen=True)
class ReEmbeddedShare:
    """Recall with a share of native rows, by how they are chosen: a RowChoice, or `random`."""

    share: float
    recall: Mapping[str, IntervalEstimate]


@dataclass(frozen=True)
class ReEmbeddingCurve:
    """Recall by share of native rows, on held-out anchors.

    index, neighbours  the mean number of rows of the index, and the neighbours of recall
    before             recall without native rows
    """

    index: float
    neighbours: int
    before: IntervalEstimate
    shares: tuple[ReEmbeddedShare, ...]


@dataclass(frozen=True, eq=False)
class JudgedTranslations:
    """Held-out translations, each judged without its own anchor.

    translated, native  (n, d) in the target encoder's units
    urgency             by RowChoice (n,): rows with a large one come first
    fold_of             (n,) the fold of each
    """

    translated: Float64[Tensor, "n d"]
    native: Float64[Tensor, "n d"]
    urgency: Mapping[RowChoice, Float64[Tensor, " n"]]
    fold_of: Int64[Tensor, " n"]


def re_embedding_curve(
    name: str,
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    options: Options,
    *,
    shares: Sequence[float] = RE_EMBEDDED_SHARES,
    seed: int = 0,
) -> ReEmbeddingCurve | None:
    """Recall by share of native rows, for the translator that the named method fits.

    source  (k, d_x) and target (k, d_y): raw anchors, row i the same item; options resolved
    shares  of the rows, each in [0, 1]
    seed    draws the folds and the random choices
    Returns None below FEWEST_CHOSEN_FROM distinct anchors, or when all anchors outside a fold are
    one vector. Raises InvalidOption.
    """
    held = judge_held_out(name, source, target, options, seed=seed)
    if held is None:
        return None
    parts = [(held.fold_of == fold).nonzero().flatten() for fold in torch.unique(held.fold_of)]
    neighbours = max(1, min(DEFAULT_NEIGHBOURS, (min(map(len, parts)) - 1) // 2))
    generator = torch.Generator().manual_seed(seed)
    count = len(held.native)
    orders: dict[str, list[Tensor]] = {
        name: [held.urgency[name].argsort(descending=True, stable=True)]
        for name in get_args(RowChoice)
    }
    orders["random"] = [torch.randperm(count, generator=generator) for _ in range(RANDOM_CHOICES)]

    def recall_of(choices: Sequence[Tensor], share: float) -> IntervalEstimate:
        chosen = [each[: round(share * count)] for each in choices]
        table = torch.stack([_recalls(held, parts, rows, neighbours) for rows in chosen])
        return _estimate(table.mean(dim=0))

    return ReEmbeddingCurve(
        index=count / len(parts),
        neighbours=neighbours,
        before=recall_of(orders["centrality"], 0.0),
        shares=tuple(
            ReEmbeddedShare(share, {name: recall_of(each, share) for name, each in orders.items()})
            for share in shares
        ),
    )


def judge_held_out(
    name: str,
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    options: Options,
    *,
    seed: int = 0,
) -> JudgedTranslations | None:
    """Held-out translations, and how urgent it is to encode each again.

    Arguments, None and errors as in `re_embedding_curve`.
    """
    source, target = source.double(), target.double()
    parts = cut_into_folds(source, target, folds=None, seed=seed)
    if parts is None or int(parts[0].sum()) < FEWEST_CHOSEN_FROM:
        return None
    first, fold_of = parts
    mean = target.mean(dim=0)
    tables, translations, rows, central = [], [], [], []
    for fold in range(int(fold_of.max()) + 1):
        held = (fold_of == fold) & first
        try:
            reference, translated = reference_and_translations(
                name, source, target, options, fold_of != fold, held
            )
        except DegenerateAnchors:
            return None
        central.append(centrality(translated, target[fold_of != fold]))
        tables.append(features(reference, source[held].float()).double())
        translations.append(translated)
        rows.append(held.nonzero().flatten())
    table, translated, row = torch.cat(tables), torch.cat(translations), torch.cat(rows)
    known = table[:, DISTANCE].isfinite()
    table, translated, row = table[known], translated[known], row[known]
    cosines = (unit(translated - mean) * unit(target[row] - mean)).sum(dim=1)
    expected = _predict_by_other_folds(table[:, :REGRESSION_FEATURES], cosines, fold_of[row])
    urgency: dict[RowChoice, Tensor] = {
        "centrality": torch.cat(central)[known],
        "confidence": -expected,
    }
    return JudgedTranslations(translated, target[row], urgency, fold_of[row])


def centrality(
    translated: Float[Tensor, "n d"], anchors: Float[Tensor, "k d"]
) -> Float64[Tensor, " n"]:
    """The mean cosine of each translation (n, d) to its CENTRAL_ANCHORS nearest anchors (k, d).

    All are in the target encoder's units, and centred on the anchors' mean. Of many anchors,
    MAX_CENTRAL_ANCHORS count, always the same.
    """
    anchors = anchors.double()
    mean = anchors.mean(dim=0)
    drawn = draw_uniformly(len(anchors), size=min(MAX_CENTRAL_ANCHORS, len(anchors)), seed=0)
    near = unit(anchors[torch.as_tensor(drawn)] - mean)
    parts = [
        block.topk(min(CENTRAL_ANCHORS, len(near)), dim=1).values.mean(dim=1)
        for _, block in cosine_blocks(unit(translated.double() - mean), near)
    ]
    return torch.cat(parts) if parts else mean.new_zeros(0)


def at_size(curve: ReEmbeddingCurve, estimated: float, index: int) -> ReEmbeddingCurve:
    """The curve for an index of another size, whose recall without native rows is `estimated`.

    index  number of rows
    Every recall keeps its distance from `before` in y = log(-2 Phi^-1(o / 2)), in which recall by
    size is nearly a line (`app/maths/quality/index_curves.py`). It is an extrapolation: the
    intervals keep their width in y, and do not contain that of the estimate.
    """
    here = min(0.5, curve.neighbours / max(curve.index - 1.0, 1.0))
    there = min(0.5, DEFAULT_NEIGHBOURS / max(index - 1, 1))

    def y(recall: float, share: float) -> float:
        known = torch.tensor([recall], dtype=torch.float64)
        return float(overlap_to_y(known, torch.tensor([share], dtype=torch.float64)))

    shift = y(estimated, there) - y(curve.before.value, here)

    def moved(estimate: IntervalEstimate) -> IntervalEstimate:
        ys = torch.tensor([y(each, here) + shift for each in estimate], dtype=torch.float64)
        return IntervalEstimate(*y_to_overlap(ys, there).tolist())

    return ReEmbeddingCurve(
        index=float(index),
        neighbours=DEFAULT_NEIGHBOURS,
        before=moved(curve.before),
        shares=tuple(
            ReEmbeddedShare(
                each.share, {name: moved(recall) for name, recall in each.recall.items()}
            )
            for each in curve.shares
        ),
    )


def _predict_by_other_folds(
    table: Float64[Tensor, "n f"], cosines: Float64[Tensor, " n"], fold_of: Int64[Tensor, " n"]
) -> Float64[Tensor, " n"]:
    """The cosine that a ridge regression on the rows of all other folds expects of each row."""
    z = cosines.clamp(-LARGEST_COSINE, LARGEST_COSINE).atanh()
    expected = torch.empty_like(z)
    for fold in torch.unique(fold_of):
        inside = fold_of == fold
        centre, spread = moments(table[~inside])
        weights, offset = fit_validated_ridge(
            standardise(table[~inside], centre, spread), z[~inside]
        )
        expected[inside] = standardise(table[inside], centre, spread) @ weights + offset
    return expected.tanh()


def _recalls(
    held: JudgedTranslations,
    parts: Sequence[Int64[Tensor, " _"]],
    native_rows: Int64[Tensor, " m"],
    neighbours: int,
) -> Float64[Tensor, " n"]:
    """Recall of each query, in the order of the rows, with native vectors of `native_rows`."""
    mixed = held.translated.clone()
    mixed[native_rows] = held.native[native_rows]
    recalls = mixed.new_empty(len(mixed))
    for rows in parts:
        queries = unit(held.native[rows])
        lists = []
        for documents in (queries, unit(mixed[rows])):
            scores = (queries @ documents.T).fill_diagonal_(-torch.inf)
            lists.append(scores.topk(neighbours, dim=1).indices)
        recalls[rows] = shared_count(*lists).double() / neighbours
    return recalls


def _estimate(values: Float64[Tensor, " n"]) -> IntervalEstimate:
    low, high = bootstrap_interval(values)
    return IntervalEstimate(float(values.mean()), float(low), float(high))
