"""Cases of `quality`."""

from __future__ import annotations

import torch

from app.maths.anchors import mismatch
from app.maths.geometry.space import fit_space
from app.maths.quality import (
    candidates,
    confidence,
    crossfit,
    evaluation,
    evidence,
    index_curves,
    metrics,
    promise,
    selection,
)
from app.maths.quality.candidates import DEFAULT_CANDIDATE, Candidate
from app.maths.translators.methods import resolve
from tests.maths.devices.common import Case, On, pair_of_clouds

X, Y = pair_of_clouds(70)
#: Two rows that are equal on one side, which share a fold.
X[5], Y[9] = X[3], Y[8]
NEW_X, NEW_Y = (side[70:] for side in pair_of_clouds(90))
WEIGHTS = torch.linspace(0.5, 1.5, 70, dtype=torch.float64)
COUNTED = torch.arange(70) % 7 > 0
OPTIONS = resolve("graded", {}, anchors=70)
FEW = [
    DEFAULT_CANDIDATE["retrieval"],
    Candidate("procrustes", {}),
    Candidate("kernel", {"decode_power": 0.25}),
]


def sides(on: On) -> tuple[torch.Tensor, torch.Tensor]:
    return on(X.double()), on(Y.double())


def roles(on: On) -> dict[str, torch.Tensor]:
    return {"weights": on(WEIGHTS), "counted": on(COUNTED)}


def held(on: On) -> crossfit.HeldOutTranslations:
    found = crossfit.hold_out("graded", *sides(on), OPTIONS)
    assert found is not None
    return found


def drawn(on: On, *, with_roles: bool) -> object:
    given = roles(on) if with_roles else {"weights": None, "counted": None}
    generator = torch.Generator().manual_seed(0)
    return crossfit.draw_anchors(*sides(on), *given.values(), most=20, generator=generator)


def choice_of_many(on: On) -> object:
    """More anchors than a choice uses, so that kernels are compared once more."""
    x, y = pair_of_clouds(1100)
    linear_best = [Candidate("procrustes", {}), FEW[0], FEW[3]]
    return selection.choose_method(
        on(x.double()), on(y.double()), candidates=linear_best, usual=linear_best[0]
    )


def judges_drawn(on: On) -> object:
    x, y = pair_of_clouds(3000)
    return mismatch.influence(on(x), on(y))


def expected(on: On) -> object:
    made = confidence.fit_confidence("graded", *sides(on), OPTIONS)
    assert made is not None
    rows = torch.cat([NEW_X, X.mean(dim=0, keepdim=True), 50 * NEW_X[:2]])
    return made, confidence.expected_cosines(made, on(rows))


def reference(on: On) -> confidence.Reference:
    rest = on(torch.arange(70) > 9)
    return confidence.reference_and_translations("graded", *sides(on), OPTIONS, rest, ~rest, None)[
        0
    ]


def evaluated(on: On) -> object:
    x, y = (side[:30, :8] for side in sides(on))
    return [
        evaluation.evaluate({"x": x, "native": y}, y, k=4, corpus=corpus, csls_neighbours=3)
        for corpus in (None, sides(on)[1][30:])
    ]


def promised(on: On) -> object:
    both = sides(on)
    curves = index_curves.measure_curves([held(on)], both[1], on(NEW_Y.double()))
    curve = promise.learning_curve("graded", *both, OPTIONS)
    basis = promise.promise_basis(curves, crossfit.held_out_quality(held(on), *both), curve)
    return [curves, promise.promise(basis, 30), promise.promise(basis, 10_000)]


def searched(on: On) -> metrics.SearchResult:
    blocks = metrics.cosine_blocks(metrics.unit(on(Y[:9])), metrics.unit(on(Y)))
    return metrics.search(blocks, 4, own=False)


def own_search(on: On) -> metrics.SearchResult:
    rows = metrics.unit(on(Y))
    return metrics.search(metrics.cosine_blocks(rows, rows), 4, own=True)


def compared(on: On) -> object:
    rows, found = metrics.unit(on(Y)), own_search(on)
    return metrics.compare_results(
        rows, rows, results=found, native_results=found, own=found.near, native_own=found.near
    )


def measured_candidates(on: On) -> object:
    first, fold_of = crossfit.cut_into_folds(*sides(on), folds=5, seed=0)  # type: ignore[misc]
    return candidates.measure_candidates(FEW, *sides(on), first, fold_of, on(WEIGHTS), folds=5)


CASES: dict[str, Case] = {
    "quality.candidates.measure_candidates": measured_candidates,
    "quality.confidence.fit_confidence": lambda on: confidence.fit_confidence(
        "graded", *sides(on), OPTIONS, **roles(on)
    ),
    "quality.confidence.expected_cosines": expected,
    "quality.confidence.error_interval": lambda on: confidence.error_interval(
        on(X[:, 0].double().sort().values), 0.9
    ),
    "quality.confidence.p_values": lambda on: confidence.p_values(
        on(X[:, 0].double()), on(X[:, 1].double().sort().values)
    ),
    "quality.confidence.reference_and_translations": reference,
    "quality.confidence.moments": lambda on: confidence.moments(on(X.double())),
    "quality.confidence.standardise": lambda on: confidence.standardise(
        on(X.double()), on(X[0].double()), on(X[1].double().abs())
    ),
    "quality.confidence.fit_validated_ridge": lambda on: confidence.fit_validated_ridge(
        on(X.double()), on(Y[:, 0].double())
    ),
    "quality.confidence.features": lambda on: confidence.features(reference(on), on(NEW_X)),
    "quality.crossfit.hold_out": lambda on: crossfit.hold_out(
        "irp", *sides(on), resolve("irp", {}, anchors=70), **roles(on)
    ),
    "quality.crossfit.fit_some": lambda on: crossfit.fit_some(*sides(on), on(COUNTED), on(WEIGHTS)),
    "quality.crossfit.draw_anchors": lambda on: [
        drawn(on, with_roles=with_roles) for with_roles in (False, True)
    ],
    "quality.crossfit.cut_into_folds": lambda on: [
        crossfit.cut_into_folds(*sides(on), folds=5, seed=1, counted=counted)
        for counted in (None, on(COUNTED))
    ],
    "quality.crossfit.cross_fit": lambda on: crossfit.cross_fit(
        "graded", *sides(on), OPTIONS, **roles(on)
    ),
    "quality.crossfit.held_out_quality": lambda on: crossfit.held_out_quality(held(on), *sides(on)),
    "quality.crossfit.quality_in_parts": lambda on: crossfit.quality_in_parts(
        on(Y.double()), on(Y.double() + 0.1), [on(torch.arange(30)), on(torch.arange(30, 70))]
    ),
    "quality.evaluation.evaluate": evaluated,
    "quality.evidence.evidence": lambda on: [
        evidence.evidence((found := held(on)).translated, sides(on)[1], found.first, folds)
        for folds in (None, held(on).fold_of)
    ],
    "quality.evidence.permutation_moments": lambda on: evidence.permutation_moments(
        on(X[:10].double())
    ),
    "quality.evidence.cosine_moments": lambda on: evidence.cosine_moments(
        on(Y[:6].double()), on(Y[6:12].double())
    ),
    "quality.evaluation.csls": lambda on: evaluation.csls(
        metrics.unit(on(Y[:9])), metrics.unit(on(Y)), 3
    ),
    "quality.evaluation.local_similarity": lambda on: evaluation.local_similarity(
        metrics.unit(on(Y[:9])), metrics.unit(on(Y)), 3
    ),
    "quality.evaluation.skewness": lambda on: evaluation.skewness(searched(on).near, 70),
    "quality.index_curves.overlap_to_y": lambda on: index_curves.overlap_to_y(
        on(torch.tensor([0.4, 0.7]).double()), on(torch.tensor([0.1, 0.2]).double())
    ),
    "quality.index_curves.y_to_overlap": lambda on: index_curves.y_to_overlap(
        on(X[:3].double()), 0.1
    ),
    "quality.index_curves.thinned_reciprocal_rank": lambda on: index_curves.thinned_reciprocal_rank(
        on(torch.arange(1, 9)), 0.5
    ),
    "quality.index_curves.measure_curves": promised,
    "anchors.mismatch.influence": lambda on: mismatch.influence(on(X), on(Y)),
    "anchors.mismatch.influence/drawn judges": judges_drawn,
    "quality.metrics.bootstrap_interval": lambda on: metrics.bootstrap_interval(
        on(X), resamples=50
    ),
    "quality.promise.learning_curve": lambda on: promise.learning_curve(
        "graded", *sides(on), OPTIONS, **roles(on)
    ),
    "quality.promise.measure_curve": lambda on: promise.measure_curve(
        "recall", on(X[:, :3].double()), on(torch.tensor([10.0, 20.0, 40.0]).double())
    ),
    "quality.metrics.unit": lambda on: metrics.unit(on(X)),
    "quality.metrics.cosine": lambda on: metrics.cosine(on(Y[:5]), on(Y[5:10])),
    "quality.metrics.cosine_blocks": lambda on: metrics.cosine_blocks(
        metrics.unit(on(Y[:9])), metrics.unit(on(Y))
    ),
    "quality.metrics.search": lambda on: [searched(on), own_search(on)],
    "quality.metrics.shared_count": lambda on: metrics.shared_count(
        own_search(on).near, own_search(on).with_own
    ),
    "quality.metrics.jaccard": lambda on: metrics.jaccard(
        own_search(on).near, own_search(on).with_own
    ),
    "quality.metrics.item_metrics": lambda on: metrics.item_metrics(on(Y), on(Y + 0.1)),
    "quality.metrics.compare_results": compared,
    "quality.metrics.mean_quality": lambda on: metrics.mean_quality(
        metrics.item_metrics(on(Y), on(Y + 0.1))
    ),
    "quality.metrics.do_nothing": lambda on: [metrics.do_nothing(on(X), d) for d in (8, 12)],
    "quality.metrics.cka": lambda on: metrics.cka(on(X), on(Y)),
    "quality.promise.more_partitions": lambda on: promise.more_partitions(
        held(on), "graded", *sides(on), OPTIONS, **roles(on)
    ),
    "quality.selection.choose_method": lambda on: selection.choose_method(
        *sides(on), candidates=FEW, **roles(on)
    ),
    "quality.selection.choose_method/all": lambda on: selection.choose_method(
        *sides(on), prefer="classification"
    ),
    "quality.selection.choose_method/many": choice_of_many,
    "quality.selection.held_out_scores": lambda on: selection.held_out_scores(
        *sides(on), FEW[0], **roles(on)
    ),
    "quality.evaluation.relative_similarity": lambda on: [
        evaluation.relative_similarity(
            fit_space(on(X)), fit_space(on(Y)), on(X), on(Y), of_anchors=of_anchors
        )
        for of_anchors in (False, True)
    ],
}
