"""`auto`: which method serves a pair, chosen by cross-validation on its anchors.

The anchors are cut into FOLDS parts. Every candidate is fitted to all but one of them and measured on that one, so each anchor
gets each candidate's numbers from a fit that never saw it. The candidate with the best mean `_score` is compared with the usual
one, `USUAL`, anchor by anchor: it is taken when it is better by TOLD standard errors of the paired difference, and else the usual
one stays, which nothing of the pair has formed. Among dozens of candidates the best of few anchors is mostly the luckiest: on
seven kinds of embeddings the usual one beat it below some hundred anchors, and lost to it above (benchmarks/quality.py).
What the choice is worth is estimated without the optimism of having chosen: each fold is measured by the candidate that the other
folds' anchors would have chosen (`Choice.found`).

Equal anchors give equal choices: nothing here looks at a clock. The time is bounded by choosing on MOST_ANCHORS anchors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.geometry.pair import Core, Pair
from app.maths.geometry.sampling import cluster_centres
from app.maths.geometry.space import Space, fit_space, normalise
from app.maths.quality.crossfit import cut_into_folds
from app.maths.quality.metrics import DEFAULT_NEIGHBOURS, search, cosine_blocks, unit
from app.maths.translators.methods import METHODS, Options, pair_for, resolve

Preference = Literal["retrieval", "cosine", "classification"]

SELECTION_FOLDS = 5

#: a choice looks at so many anchors, drawn by seed; the fit itself takes all
MOST_SELECTION_ANCHORS = 1024

#: how much better than the usual one a candidate must be, in standard errors
DECISIVE_ERRORS = 1.5

#: the fewer the anchors, the coarser their neighbourhoods: 10 of 50 are a fifth of the index. In the larger index of a client the
#: order of the very nearest counts, which MRR sees: it weighs FINE / k beside recall
MRR_WEIGHT = 30.0

SELECTION_MEASURES = ("recall", "mrr", "cosine", "agreement")

#: classes that stand for those of a head nobody has shown us
MOST_CLUSTERS = 32

#: what the two powers of a good graded translator add up to: (0, 1), (1/2, 3/4) and (1, 1/4) are each near the best of their row
TOTAL_POWER = 1.25


class Candidate(NamedTuple):
    """A method and what it is given; the rest are its defaults."""

    method: str
    options: Options


def _candidates() -> tuple[Candidate, ...]:
    """From the fewest parameters to the most: two spaces' own; a rotation; a matrix; a rotation between whitened spaces."""
    ridges = (None, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    return (
        *(
            Candidate("graded", {"decode_power": power, "ridge": ridge})
            for ridge in ridges
            for power in (0.0, 0.125, 0.25, 0.375, 0.5)
        ),
        Candidate("procrustes", {}),
        *(Candidate("toward-procrustes", {"ridge": ridge}) for ridge in (1.0, 3.0, 100.0)),
        *(
            Candidate("canonical", {"correlation_power": c, "dewhiten": w})
            for c in (0.0, 0.5)
            for w in (0.5, 1.0)
        ),
    )


#: Not among them: `irp` and `irp-ridge`, which on no pair of benchmarks/quality.py would have been chosen; `ridge`, which is
#: graded at (1, 0); anything about zero in place of the mean, which lost everywhere; `affine`, whose lengths say how sure it is:
#: an index of dot products would be out of order
CANDIDATES = _candidates()

#: what stays unless another is told apart from it, and serves where the anchors are too few to hold any out
DEFAULT_CANDIDATE: dict[Preference, Candidate] = {
    "retrieval": Candidate("graded", {"decode_power": 0.25, "ridge": None}),
    "cosine": Candidate("graded", {"decode_power": 0.0, "ridge": None}),
    "classification": Candidate("graded", {"decode_power": 0.25, "ridge": None}),
}


@dataclass(frozen=True)
class ScoredCandidate:
    """A candidate's means over held-out anchors; `score`: what decides, `error`: of its difference from the usual one's."""

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
    """method, options  what to fit, options resolved
    prefer     what was asked for
    reason     why, in words
    anchors    distinct anchors that the choice looked at; folds 0 where there were too few to look
    found      means over anchors of what the other folds' choice gives, by measure: honest, as no anchor has voted for itself
    candidates best first
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
) -> Choice:
    """The method for a pair of raw anchors (k, d_x) and (k, d_y), the encoders' own units, row i the same item.

    shape  options that all candidates take (`renormalise`, `keep_norms`): they are not chosen, and change no direction
    usual  one of the candidates; None: USUAL of what is preferred
    Below `crossfit.FEWEST` distinct anchors, or where a fold leaves only one vector, it is the usual one. Raises UnknownOption.
    """
    source, target, shape = source.double(), target.double(), dict(shape or {})
    usual = usual or DEFAULT_CANDIDATE[prefer]
    size = len(source)
    if size > MOST_SELECTION_ANCHORS:
        rows = torch.randperm(size, generator=torch.Generator().manual_seed(seed))[:MOST_SELECTION_ANCHORS]
        source, target = source[rows], target[rows]
    parted = cut_into_folds(source, target, folds=SELECTION_FOLDS, seed=seed)
    measured = None if parted is None else _measure_candidates(candidates, source, target, *parted)
    if parted is None or measured is None:
        options = resolve(usual.method, {**usual.options, **shape}, anchors=size)
        return Choice(
            usual.method,
            options,
            prefer,
            "the usual: too few distinct anchors to hold any out",
            len(source),
            0,
        )
    first, fold_of = parted
    measured, folds = measured[:, first].double(), fold_of[first]
    scores, usual_at = _score(measured, prefer), list(candidates).index(usual)
    winner = _best_candidate(scores, usual_at)
    voted = [_best_candidate(scores[:, folds != fold], usual_at) for fold in range(SELECTION_FOLDS)]
    found = torch.stack(
        [measured[voted[fold], folds == fold].sum(dim=0) for fold in range(SELECTION_FOLDS)]
    ).sum(dim=0) / len(folds)
    means, mean_scores = measured.mean(dim=1), scores.mean(dim=1)
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
        found=_by_measure(found),
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


def decode_power(relative_power: float) -> float:
    """For relative vectors made with a power in [0, 1]: the graded decoder's power, which undoes what their encoding has not.

    Plain cosines (0) need the full inverse, 1; vectors encoded with power 1 need .25.
    """
    return min(1.0, TOTAL_POWER - relative_power)


def decoder_options(relative_power: float) -> dict[str, float]:
    """What a graded decoder is given for relative vectors made with a power in [0, 1].

    What the encoding has not regularised the decoder must: below power 1 a ridge of 1 keeps more neighbours than the anchors' own
    (plain cosines, five kinds of embeddings: recall@10 .02 higher), and far more of the cosine.
    """
    own = {} if relative_power >= 1.0 else {"ridge": 1.0}
    return {"decode_power": decode_power(relative_power), **own}


def _by_measure(measures: Float64[Tensor, " m"]) -> dict[str, float]:
    return dict(zip(SELECTION_MEASURES, measures.tolist(), strict=True))


def _score(measured: Float64[Tensor, "c n m"], prefer: Preference) -> Float64[Tensor, "c n"]:
    """What decides, of each candidate and anchor: recall and FINE / n of MRR; cosine; or the agreement of classes, and recall."""
    recall, mrr, cosine, agreement = measured.unbind(dim=2)
    if prefer == "retrieval":
        return recall + MRR_WEIGHT / measured.shape[1] * mrr
    return cosine if prefer == "cosine" else agreement + recall


def _best_candidate(scores: Float64[Tensor, "c n"], usual: int) -> int:
    """The candidate with the best mean, the first of equals, if it is told apart from the usual one; else that."""
    best = int(scores.mean(dim=1).argmax())
    better = scores[best] - scores[usual]
    return best if float(better.mean()) > DECISIVE_ERRORS * float(_standard_error(better)) else usual


def _standard_error(values: Float64[Tensor, "*c n"]) -> Float64[Tensor, " *c"]:
    """The standard error of the means over the last dimension."""
    error: Tensor = values.std(dim=-1) / values.shape[-1] ** 0.5
    return error


def _reason(usual: bool, best: bool) -> str:
    if usual:
        return (
            "the usual, and the best of all"
            if best
            else f"the usual: no other is better by {DECISIVE_ERRORS} standard errors"
        )
    return f"the best of all, better than the usual by more than {DECISIVE_ERRORS} standard errors"


class _Natives(NamedTuple):
    """What every fold is measured against.

    mean    (d_y,) of the anchors; unit (k, d_y) the native vectors' directions about it
    truth   (k, k) which are whose nearest neighbours
    centres (c, d_y) of clusters of the directions; own (k,) which of them each is nearest to
    """

    mean: Float64[Tensor, " dy"]
    unit: Float64[Tensor, "k dy"]
    truth: Bool[Tensor, "k k"]
    centres: Float64[Tensor, "c dy"]
    own: Int64[Tensor, " k"]


def _natives(target: Float64[Tensor, "k dy"]) -> _Natives:
    mean = target.mean(dim=0)
    native = unit(target - mean)
    alike = unit(native)
    found = search(cosine_blocks(alike, alike), min(DEFAULT_NEIGHBOURS, len(native) - 1), own=True).near
    truth = torch.zeros(len(native), len(native), dtype=torch.bool).scatter_(1, found, True)
    count = min(MOST_CLUSTERS, max(2, round(len(native) ** 0.5)))
    centres = unit(cluster_centres(native, size=count, seed=0))
    return _Natives(mean, native, truth, centres, (native @ centres.T).argmax(dim=1))


def _measure_candidates(
    candidates: Sequence[Candidate],
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    first: Bool[Tensor, " k"],
    fold_of: Int64[Tensor, " k"],
) -> Float32[Tensor, "c k m"] | None:
    """Every candidate's MEASURES of every anchor that counts; None when all anchors outside a fold are one vector."""
    natives = _natives(target[first])
    place = first.cumsum(0) - 1  # of an anchor among those that count
    scores = torch.zeros(len(candidates), len(source), len(SELECTION_MEASURES))
    for fold in range(SELECTION_FOLDS):
        held, rest = ((fold_of == fold) & first).nonzero().flatten(), fold_of != fold
        try:
            x, y = fit_space(source[rest]), fit_space(target[rest])
        except DegenerateAnchors:
            return None
        part = _Fold(x, y, source[held], place[held], natives)
        for number, candidate in enumerate(candidates):
            scores[number, held] = part.measure(candidate)
    return scores


class _Fold:
    """One fold: what its fits were made of, and what they are measured on."""

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
        """MEASURES of the held-out vectors, those of anchors `place`, by a candidate's fit."""
        name, given = candidate
        options = resolve(name, given, anchors=self._x.size)
        key = (METHODS[name].affine, bool(options.get("centre", True)))
        if key not in self._frames:  # what is the same for many candidates is made once
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
        found = index.topk(min(DEFAULT_NEIGHBOURS, index.shape[1] - 1), dim=1).indices
        recall = self._natives.truth[self._place].gather(1, found).float().mean(dim=1)
        agreed = centres.argmax(dim=1) == self._natives.own[self._place]
        return torch.stack([recall, mrr, own[:, 0], agreed.float()], dim=1)


class _Frame:
    """A pair in whose coordinates cores are applied, and the results compared with natives, without leaving them.

    translated - mean = s_y r(q F) V_y^T + (m_y - mean) for q = n(x) V_x: its products with natives need only their coordinates,
    and what m_y - mean adds.
    """

    def __init__(
        self, pair: Pair, vectors: Float64[Tensor, "h dx"], natives: _Natives, *, affine: bool
    ) -> None:
        self.pair, self._affine, self._count = pair, affine, len(natives.unit)
        # In units of the target's scale: cosines have none, and float32 would overflow at the squares of large ones.
        directions, lengths = normalise(vectors, pair.source.mean)
        if affine:
            directions = directions * (lengths / pair.source.scale)[:, None]
        self._queries = (directions @ pair.x.right.T).float()
        apart = (pair.target.mean - natives.mean) / pair.target.scale
        compared = torch.cat([natives.unit, natives.centres])
        self._compared = (compared @ pair.y.right.T).float()
        self._offset = (compared @ apart).float()
        self._apart = (pair.y.right @ apart).float()
        self._apart_squared = float(apart.square().sum())

    def cosines(self, core: Core) -> tuple[Float32[Tensor, "h k"], Float32[Tensor, "h c"]]:
        """Of the translated vectors to the natives, and to the centres, about the natives' mean."""
        made = self._queries @ core.float()
        if not self._affine:
            made = torch.nn.functional.normalize(made, dim=1)
        squared = made.square().sum(dim=1) + 2.0 * (made @ self._apart) + self._apart_squared
        cosines = (
            torch.addmm(self._offset, made, self._compared.T)
            * squared.clamp_min(1e-30).rsqrt()[:, None]
        )
        return cosines[:, : self._count], cosines[:, self._count :]
