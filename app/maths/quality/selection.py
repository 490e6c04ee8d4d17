"""`auto`: the method that serves a pair, chosen by cross-validation on its anchors.

The anchors are cut into SELECTION_FOLDS folds. Every candidate is fitted to all but one of them and
measured on that one, so a fit that never saw an anchor gives its numbers. The candidate with the
best mean `_score` is compared with the default one, `DEFAULT_CANDIDATE`, anchor by anchor. It is
chosen when it is better by DECISIVE_ERRORS standard errors of the paired difference; otherwise the
default, which does not depend on the pair, is chosen. Among dozens of candidates, the best on few
anchors is mostly the luckiest: on seven kinds of embeddings the default beat it below about a
hundred anchors, and lost to it above (benchmarks/quality). The estimate of the chosen
candidate's quality is free of selection bias: each fold is measured by the candidate that the
anchors of the other folds would have chosen (`Choice.found`).

Equal anchors give equal choices: no clock takes part. MOST_SELECTION_ANCHORS limits the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.geometry.pair import Core, Pair
from app.maths.geometry.sampling import cluster_centres
from app.maths.geometry.space import Space, normalise
from app.maths.quality.candidates import CANDIDATES, DEFAULT_CANDIDATE, Candidate, Preference
from app.maths.quality.crossfit import cut_into_folds, draw_anchors, fit_some
from app.maths.quality.metrics import DEFAULT_NEIGHBOURS, cosine_blocks, search, unit
from app.maths.translators.methods import METHODS, Options, pair_for, resolve

SELECTION_FOLDS = 5

#: Anchors that a choice uses at most, drawn by seed; the fit itself uses all.
MOST_SELECTION_ANCHORS = 1024

#: The standard errors by which a candidate must be better than the default.
DECISIVE_ERRORS = 1.5

#: Fewer anchors have coarser neighbourhoods: 10 of 50 are a fifth of the index. In a client's
#: larger index the order of the very nearest matters, which MRR measures: its weight relative to
#: recall is MRR_WEIGHT / k.
MRR_WEIGHT = 30.0

SELECTION_MEASURES = ("recall", "mrr", "cosine", "agreement")

#: Classes that stand in for those of an unknown head.
MOST_CLUSTERS = 32


@dataclass(frozen=True)
class ScoredCandidate:
    """A candidate's means over held-out anchors.

    score  the number that decides
    error  the standard error of its difference from the default's score
    """

    method: str
    options: Options
    recall: float
    mrr: float
    cosine: float
    agreement: float
    score: float
    error: float


@dataclass(frozen=True)
class Choice:
    """A chosen method.

    method, options  the method to fit, with resolved options
    prefer           the requested preference
    reason           the reason, in words
    anchors          distinct anchors that the choice used; folds is 0 where there were too few
    found            means over anchors of the other folds' choice, by measure: unbiased, because no
                     anchor took part in its own choice
    candidates       best first
    """

    method: str
    options: Options
    prefer: Preference
    reason: str
    anchors: int
    folds: int
    found: dict[str, float] = field(default_factory=dict)
    candidates: Sequence[ScoredCandidate] = ()


def choose_method(
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    *,
    prefer: Preference = "retrieval",
    shape: Options | None = None,
    seed: int = 0,
    candidates: Sequence[Candidate] = CANDIDATES,
    usual: Candidate | None = None,
    weights: Float64[Tensor, " k"] | None = None,
    counted: Bool[Tensor, " k"] | None = None,
) -> Choice:
    """The method for a pair of raw anchors (k, d_x) and (k, d_y), the encoders' own units, row i
    the same item.

    shape  options of all candidates (`renormalise`, `keep_norms`): they are not chosen, and change
           no direction
    usual  the default, one of the candidates; None: DEFAULT_CANDIDATE of the preference
    weights, counted  (k,) as in `crossfit.hold_out`: the weights of the anchors in the fits, and
           the anchors that are held out and measured
    Below `crossfit.FEWEST_DISTINCT` distinct anchors, or where a fold leaves only one vector, it is
    the default. Raises UnknownOption.
    """
    source, target, shape = source.double(), target.double(), dict(shape or {})
    usual = usual or DEFAULT_CANDIDATE[prefer]
    size = len(source)
    source, target, weights, counted = draw_anchors(
        source,
        target,
        weights,
        counted,
        most=MOST_SELECTION_ANCHORS,
        generator=torch.Generator().manual_seed(seed),
    )
    parts = cut_into_folds(source, target, folds=SELECTION_FOLDS, seed=seed, counted=counted)
    measures = (
        None if parts is None else _measure_candidates(candidates, source, target, *parts, weights)
    )
    if parts is None or measures is None:
        options = resolve(usual.method, {**usual.options, **shape}, anchors=size)
        return Choice(
            usual.method,
            options,
            prefer,
            "the usual method: there are too few distinct anchors to compare methods",
            len(source),
            0,
        )
    first, fold_of = parts
    measures, folds = measures[:, first].double(), fold_of[first]
    scores, usual_at = _score(measures, prefer), list(candidates).index(usual)
    winner = _best_candidate(scores, usual_at)
    estimates = _nested_estimates(measures, scores, folds, usual_at)
    means, mean_scores = measures.mean(dim=1), scores.mean(dim=1)
    errors = _standard_error(scores - scores[usual_at])
    order = mean_scores.argsort(descending=True, stable=True).tolist()
    chosen = candidates[winner]
    return Choice(
        method=chosen.method,
        options=resolve(chosen.method, {**chosen.options, **shape}, anchors=size),
        prefer=prefer,
        reason=_reason(winner == usual_at, order[0] == usual_at),
        anchors=len(folds),
        folds=SELECTION_FOLDS,
        found=_by_measure(estimates),
        candidates=[
            ScoredCandidate(
                method,
                given,
                **_by_measure(means[i]),
                score=float(mean_scores[i]),
                error=float(errors[i]),
            )
            for i in order
            for method, given in [candidates[i]]
        ],
    )


def held_out_scores(
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    candidate: Candidate,
    *,
    weights: Float64[Tensor, " k"],
    counted: Bool[Tensor, " k"],
    seed: int = 0,
) -> Float64[Tensor, " n"] | None:
    """The retrieval score that `choose_method` decides by, of one candidate with these weights.

    Arguments as there. Returns one score for each anchor that counts, in the same order for equal
    `counted`; None where there are too few.
    """
    parts = cut_into_folds(source, target, folds=SELECTION_FOLDS, seed=seed, counted=counted)
    if parts is None:
        return None
    measures = _measure_candidates([candidate], source, target, *parts, weights)
    return None if measures is None else _score(measures[:, parts[0]].double(), "retrieval")[0]


def _by_measure(measures: Float64[Tensor, " m"]) -> dict[str, float]:
    return dict(zip(SELECTION_MEASURES, measures.tolist(), strict=True))


def _score(measures: Float64[Tensor, "c n m"], prefer: Preference) -> Float64[Tensor, "c n"]:
    """The number that decides, for each candidate and anchor: recall and MRR_WEIGHT / n of MRR;
    cosine; or the agreement of classes, and recall.
    """
    recall, mrr, cosine, agreement = measures.unbind(dim=2)
    if prefer == "retrieval":
        return recall + MRR_WEIGHT / measures.shape[1] * mrr
    return cosine if prefer == "cosine" else agreement + recall


def _nested_estimates(
    measures: Float64[Tensor, "c n m"],
    scores: Float64[Tensor, "c n"],
    folds: Int64[Tensor, " n"],
    usual: int,
) -> Float64[Tensor, " m"]:
    """The mean measures of the choice, where each fold's candidate is chosen by the other folds."""
    choices = [_best_candidate(scores[:, folds != fold], usual) for fold in range(SELECTION_FOLDS)]
    sums = [measures[choices[fold], folds == fold].sum(dim=0) for fold in range(SELECTION_FOLDS)]
    return torch.stack(sums).sum(dim=0) / len(folds)


def _best_candidate(scores: Float64[Tensor, "c n"], usual: int) -> int:
    """The candidate with the best mean, the first of equals, if it is clearly better than the
    default; else the default.
    """
    best = int(scores.mean(dim=1).argmax())
    better = scores[best] - scores[usual]
    return (
        best if float(better.mean()) > DECISIVE_ERRORS * float(_standard_error(better)) else usual
    )


def _standard_error(values: Float64[Tensor, "*c n"]) -> Float64[Tensor, " *c"]:
    """The standard error of the means over the last dimension."""
    error: Tensor = values.std(dim=-1) / values.shape[-1] ** 0.5
    return error


def _reason(usual: bool, best: bool) -> str:
    if usual:
        return (
            "the usual method, which is also the best"
            if best
            else f"the usual method: no other is better by {DECISIVE_ERRORS} standard errors"
        )
    return f"the best method, more than {DECISIVE_ERRORS} standard errors better than the usual one"


class _Natives(NamedTuple):
    """The native vectors that every fold is compared with.

    mean     (d_y,) of the anchors
    unit     (k, d_y) the native vectors' directions about it
    truth    (k, k) which rows are whose nearest neighbours
    centres  (c, d_y) of clusters of the directions
    own      (k,) the centre that each is nearest to
    """

    mean: Float64[Tensor, " dy"]
    unit: Float64[Tensor, "k dy"]
    truth: Bool[Tensor, "k k"]
    centres: Float64[Tensor, "c dy"]
    own: Int64[Tensor, " k"]


def _natives(target: Float64[Tensor, "k dy"]) -> _Natives:
    mean = target.mean(dim=0)
    native = unit(target - mean)
    directions = unit(native)
    neighbours = search(
        cosine_blocks(directions, directions), min(DEFAULT_NEIGHBOURS, len(native) - 1), own=True
    ).near
    truth = torch.zeros(len(native), len(native), dtype=torch.bool).scatter_(1, neighbours, True)
    count = min(MOST_CLUSTERS, max(2, round(len(native) ** 0.5)))
    centres = unit(cluster_centres(native, size=count, seed=0))
    return _Natives(mean, native, truth, centres, (native @ centres.T).argmax(dim=1))


def _measure_candidates(
    candidates: Sequence[Candidate],
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    first: Bool[Tensor, " k"],
    fold_of: Int64[Tensor, " k"],
    weights: Float64[Tensor, " k"] | None,
) -> Float32[Tensor, "c k m"] | None:
    """Every candidate's SELECTION_MEASURES of every anchor that counts; None when all anchors
    outside a fold are one vector.
    """
    natives = _natives(target[first])
    place = first.cumsum(0) - 1  # each anchor's place among those that count
    scores = torch.zeros(len(candidates), len(source), len(SELECTION_MEASURES))
    for fold in range(SELECTION_FOLDS):
        held_rows, fit_rows = ((fold_of == fold) & first).nonzero().flatten(), fold_of != fold
        try:
            x, y = fit_some(source, target, fit_rows, weights)
        except DegenerateAnchors:
            return None
        part = _Fold(x, y, source[held_rows], place[held_rows], natives)
        for number, candidate in enumerate(candidates):
            scores[number, held_rows] = part.measure(candidate)
    return scores


class _Fold:
    """The anchors that a fold's fits use, and those that they are measured on."""

    def __init__(
        self,
        x: Space,
        y: Space,
        vectors: Float64[Tensor, "h dx"],
        place: Int64[Tensor, " h"],
        natives: _Natives,
    ) -> None:
        self._x, self._y, self._vectors, self._place, self._natives = x, y, vectors, place, natives
        self._frames: dict[tuple[bool, bool], _Frame] = {}

    def measure(self, candidate: Candidate) -> Float32[Tensor, "h m"]:
        """SELECTION_MEASURES of the held-out vectors, which are the anchors `place`, by a
        candidate's fit.
        """
        name, given = candidate
        options = resolve(name, given, anchors=self._x.size)
        key = (METHODS[name].affine, bool(options.get("centre", True)))
        if key not in self._frames:  # many candidates share a frame
            pair = pair_for(name, self._x, self._y, options)
            self._frames[key] = _Frame(
                pair, self._vectors, self._natives, affine=METHODS[name].affine
            )
        frame = self._frames[key]
        return self._compared(*frame.cosines(METHODS[name].core(frame.pair, options)))

    def _compared(
        self, index: Float32[Tensor, "h k"], centres: Float32[Tensor, "h c"]
    ) -> Float32[Tensor, "h m"]:
        own = index.gather(1, self._place[:, None])
        mrr = 1.0 / (index >= own).sum(dim=1)
        index.scatter_(1, self._place[:, None], -torch.inf)
        neighbours = index.topk(min(DEFAULT_NEIGHBOURS, index.shape[1] - 1), dim=1).indices
        recall = self._natives.truth[self._place].gather(1, neighbours).float().mean(dim=1)
        agreed = centres.argmax(dim=1) == self._natives.own[self._place]
        return torch.stack([recall, mrr, own[:, 0], agreed.float()], dim=1)


class _Frame:
    """A pair whose coordinates both the cores and the comparison with natives use, so that no
    vector leaves them.

    translated - mean = s_y r(q F) V_y^T + (m_y - mean) for q = n(x) V_x: its products with natives
    need only their coordinates and the contribution of m_y - mean.
    """

    def __init__(
        self, pair: Pair, vectors: Float64[Tensor, "h dx"], natives: _Natives, *, affine: bool
    ) -> None:
        self.pair, self._affine, self._count = pair, affine, len(natives.unit)
        # In units of the target's scale: cosines have no unit, and squares of large values would
        # overflow float32.
        directions, lengths = normalise(vectors, pair.source.mean)
        if affine:
            directions = directions * (lengths / pair.source.scale)[:, None]
        self._queries = (directions @ pair.x.right.T).float()
        shift = (pair.target.mean - natives.mean) / pair.target.scale
        natives_and_centres = torch.cat([natives.unit, natives.centres])
        self._compared = (natives_and_centres @ pair.y.right.T).float()
        self._offset = (natives_and_centres @ shift).float()
        self._apart = (pair.y.right @ shift).float()
        self._apart_squared = float(shift.square().sum())

    def cosines(self, core: Core) -> tuple[Float32[Tensor, "h k"], Float32[Tensor, "h c"]]:
        """Cosines of the translated vectors to the natives, and to the centres, about the natives'
        mean.
        """
        directions = self._queries @ core.float()
        if not self._affine:
            directions = torch.nn.functional.normalize(directions, dim=1)
        squared = (
            directions.square().sum(dim=1) + 2.0 * (directions @ self._apart) + self._apart_squared
        )
        cosines = (
            torch.addmm(self._offset, directions, self._compared.T)
            * squared.clamp_min(1e-30).rsqrt()[:, None]
        )
        return cosines[:, : self._count], cosines[:, self._count :]
