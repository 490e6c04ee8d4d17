"""`auto`: the method that serves a pair, chosen by cross-validation on its anchors.

The anchors are cut into SELECTION_FOLDS folds. Every candidate is fitted to all but one of them and
measured on that one, so a fit that never saw an anchor gives its numbers. The candidate with the
best mean `_score` is compared with the default one, `default_candidate`, anchor by anchor. It is
chosen when it is better by DECISIVE_ERRORS standard errors of the paired difference and by
LEAST_LEAD; otherwise the default, which does not depend on the pair, is chosen. Among dozens of
candidates, the best on few anchors is mostly the luckiest.

What decides for retrieval was chosen by judgements, and not by the anchors: on six collections with
five encoders, the kernel has the best nDCG@10 from KERNEL_ANCHORS anchors on, and a linear map that
finds slightly more of the native neighbours among them still ranks relevant items worse
(docs/results/relevance.md). A lead of .05 tells the pairs that are linear, such as two
versions of one encoder.

The estimate of the chosen candidate's quality is free of selection bias: each fold is measured by
the candidate that the anchors of the other folds would have chosen (`Choice.found`).

Equal anchors give equal choices: no clock takes part. MAX_SELECTION_ANCHORS limits the time.

A kernel gains with every anchor, where linear maps saturate, so that the choice among few of many
anchors is too low for it. Where there are more than MAX_SELECTION_ANCHORS, the linear choice and
the kernel are compared once more, with up to MAX_KERNEL_ANCHORS, and a part of them held out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from app.maths.quality.candidates import (
    SELECTION_MEASURES,
    Candidate,
    Preference,
    candidates_for,
    default_candidate,
    measure_candidates,
)
from app.maths.quality.crossfit import cut_into_folds, draw_anchors
from app.maths.translators.methods import METHODS, Options, resolve

SELECTION_FOLDS = 5

#: Anchors that a choice uses at most, drawn by seed; the fit itself uses all.
MAX_SELECTION_ANCHORS = 1024

#: Anchors that the second comparison uses at most, and how many of them it holds out: folds up to
#: this number.
MAX_KERNEL_ANCHORS, KERNEL_HELD_OUT = 5120, 1024

#: The standard errors by which a candidate must be better than the default.
DECISIVE_ERRORS = 1.5

#: The least mean difference of scores by which it must be better.
LEAST_LEAD: dict[Preference, float] = {"retrieval": 0.05, "cosine": 0.0, "classification": 0.0}


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
    candidates: Sequence[Candidate] | None = None,
    usual: Candidate | None = None,
) -> Choice:
    """The method for a pair of raw anchors (k, d_x) and (k, d_y), the encoders' own units, row i
    the same item.

    shape  options of all candidates (`renormalise`, `keep_norms`): they are not chosen, and change
           no direction
    candidates  None: `candidates_for` the preference
    usual  the default, one of the candidates; None: `default_candidate`
    Below `crossfit.FEWEST_DISTINCT` distinct anchors, or where a fold leaves only one vector, it is
    the default. Raises UnknownOption.
    """
    every = source.double(), target.double()
    shape = dict(shape or {})
    candidates = candidates_for(prefer) if candidates is None else candidates
    size = len(source)
    source, target = draw_anchors(
        *every, most=MAX_SELECTION_ANCHORS, generator=torch.Generator().manual_seed(seed)
    )
    parts = cut_into_folds(source, target, folds=SELECTION_FOLDS, seed=seed)
    distinct = 0 if parts is None else int(parts[0].sum())
    usual = usual or default_candidate(prefer, distinct)
    measures = (
        None
        if parts is None
        else measure_candidates(candidates, source, target, *parts, folds=SELECTION_FOLDS)
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
    winner = _best_candidate(scores, usual_at, LEAST_LEAD[prefer])
    estimates = _nested_estimates(measures, scores, folds, usual_at, LEAST_LEAD[prefer])
    means, mean_scores = measures.mean(dim=1), scores.mean(dim=1)
    errors = _standard_error(scores - scores[usual_at])
    order = mean_scores.argsort(descending=True, stable=True).tolist()
    chosen = candidates[winner]
    choice = Choice(
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
    kernels = [each for each in candidates if METHODS[each.method].core is None]
    if size == len(source) or chosen in kernels or not kernels:
        return choice
    return _compare_with_kernels(choice, chosen, kernels, *every, shape=shape, seed=seed)


def _compare_with_kernels(
    choice: Choice,
    chosen: Candidate,
    kernels: Sequence[Candidate],
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    *,
    shape: Options,
    seed: int,
) -> Choice:
    """The choice of a linear candidate, or that of a kernel which is clearly better with more
    anchors.
    """
    size = len(source)
    source, target = draw_anchors(
        source,
        target,
        most=MAX_KERNEL_ANCHORS,
        generator=torch.Generator().manual_seed(seed),
    )
    folds = max(SELECTION_FOLDS, round(len(source) / KERNEL_HELD_OUT))
    parts = cut_into_folds(source, target, folds=folds, seed=seed)
    if parts is None:  # more anchors may be fewer groups: one may join two
        return choice
    first, fold_of = parts
    enough = min(folds, math.ceil(KERNEL_HELD_OUT * folds / int(first.sum())))
    first = first & (fold_of < enough)
    measures = measure_candidates([chosen, *kernels], source, target, first, fold_of, folds=enough)
    if measures is None:
        return choice
    measures = measures[:, first].double()
    scores = _score(measures, choice.prefer)
    winner = _best_candidate(scores, 0, 0.0)
    if winner == 0:
        return choice
    best = kernels[winner - 1]
    return replace(
        choice,
        method=best.method,
        options=resolve(best.method, {**best.options, **shape}, anchors=size),
        reason=f"a kernel, clearly better than the best linear method with {len(source)} anchors",
        anchors=int(first.sum()),
        folds=enough,
        found=_by_measure(measures[winner].mean(dim=0)),
    )


def _by_measure(measures: Float64[Tensor, " m"]) -> dict[str, float]:
    return dict(zip(SELECTION_MEASURES, measures.tolist(), strict=True))


def _score(measures: Float64[Tensor, "c n m"], prefer: Preference) -> Float64[Tensor, "c n"]:
    """The number that decides, for each candidate and anchor: recall; cosine; or the agreement of
    classes, and recall.
    """
    recall, _, cosine, agreement = measures.unbind(dim=2)
    if prefer == "retrieval":
        return recall
    return cosine if prefer == "cosine" else agreement + recall


def _nested_estimates(
    measures: Float64[Tensor, "c n m"],
    scores: Float64[Tensor, "c n"],
    folds: Int64[Tensor, " n"],
    usual: int,
    lead: float,
) -> Float64[Tensor, " m"]:
    """The mean measures of the choice, where each fold's candidate is chosen by the other folds."""
    choices = [
        _best_candidate(scores[:, folds != fold], usual, lead) for fold in range(SELECTION_FOLDS)
    ]
    sums = [measures[choices[fold], folds == fold].sum(dim=0) for fold in range(SELECTION_FOLDS)]
    return torch.stack(sums).sum(dim=0) / len(folds)


def _best_candidate(scores: Float64[Tensor, "c n"], usual: int, lead: float) -> int:
    """The candidate with the best mean, the first of equals, if it is clearly better than the
    default, and by more than `lead`; else the default.
    """
    best = int(scores.mean(dim=1).argmax())
    better = scores[best] - scores[usual]
    needed = max(lead, DECISIVE_ERRORS * float(_standard_error(better)))
    return best if float(better.mean()) > needed else usual


def _standard_error(values: Float64[Tensor, "*c n"]) -> Float64[Tensor, " *c"]:
    """The standard error of the means over the last dimension."""
    error: Tensor = values.std(dim=-1) / values.shape[-1] ** 0.5
    return error


def _reason(usual: bool, best: bool) -> str:
    if usual:
        return (
            "the usual method, which is also the best"
            if best
            else "the usual method: no other is clearly better"
        )
    return "the best method, clearly better than the usual one"
