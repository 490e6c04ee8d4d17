"""Cases of `anchors`, `thresholds` and `relevance`."""

from __future__ import annotations

from dataclasses import replace

import torch

from app.maths.anchors import coverage, drift, foreign, health, known_rows, mismatch, space_match
from app.maths.geometry.space import fit_space
from app.maths.relevance import fuse_weight, options, ranking_metrics, re_embedding, rescoring
from app.maths.thresholds import calibration, score_pairs
from app.maths.translators.methods import resolve
from app.types import Scores
from tests.maths.clouds import rotation
from tests.maths.devices.common import Case, On, pair_of_clouds

X, Y = pair_of_clouds(80)
X[7] = X[2]
POOL_X, POOL_Y = (side[80:] for side in pair_of_clouds(160))
OPTIONS = resolve("graded", {}, anchors=80)
ODD = torch.arange(80) % 5 == 0
TURN = rotation(4, 10).float()


def unit(on: On) -> torch.Tensor:
    return fit_space(on(X)).unit


def unit_pair(on: On) -> tuple[torch.Tensor, torch.Tensor]:
    return fit_space(on(X)).unit, fit_space(on(Y)).unit


def drifts(on: On) -> object:
    """Every verdict: unchanged, partly changed, rescaled, rotated, and changed, also in order."""
    changed = X.clone()
    changed[::4] += 1.0
    others = (X, changed, 3 * X, X @ TURN, Y, X.flip(0))
    return [drift.compare_embeddings(on(X), on(each)) for each in others]


def suspicious(on: On) -> object:
    """Related sides with two swapped rows, and unrelated ones."""
    swapped = Y.clone()
    swapped[[4, 5]] = Y[[5, 4]]
    return [mismatch.compare_anchors(on(X), on(each)) for each in (swapped, Y.roll(1, 0), Y[:, :3])]


def known(on: On) -> object:
    index = known_rows.index_known_rows(on(X))
    rows = torch.cat([2 * X[10:20], POOL_X[:5], torch.zeros(1, 10)])
    return known_rows.find_known_rows(index, on(rows))


def weighted(on: On) -> object:
    return foreign.choose_weights(on(X), on(Y), on(ODD))


def suggested(on: On) -> object:
    space = fit_space(on(X))
    directions = (on(POOL_X).double() - space.mean).div(3)
    return [
        coverage.suggest(space.unit[:rows], directions, count=4, open_=open_)
        for rows in (3, 80)
        for open_ in (None, on(torch.arange(80) > 5))
    ]


def items(on: On) -> score_pairs.CalibrationItems:
    made = score_pairs.translate_held_out("graded", on(X), on(Y), OPTIONS)
    assert made is not None
    return replace(made, translated=made.translated[:2], fold_of=made.fold_of[:2])


def calibrated(on: On) -> calibration.Calibration:
    return calibration.calibrate(items(on), Scores.translated_native)


def rows_of(on: On) -> score_pairs.ScorePairs:
    return score_pairs.sample_pairs(items(on), Scores.native_native, "source", 0)


def in_bins(on: On) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = rows_of(on)
    bins = score_pairs.stratum_of(rows.given) // 20
    return calibration.bin_means(bins, 10, rows.weight, rows)


def judged(on: On) -> ranking_metrics.Judgements:
    queries, documents = torch.arange(30) % 10, (torch.arange(30) * 7) % 60
    grades = (torch.arange(30) % 3).double()
    return ranking_metrics.collect(on(queries), on(documents), on(grades), size=60)


def searched_options(on: On) -> object:
    vectors = options.SearchVectors(
        *(on(each) for each in (X[:10], X[20:], Y[:10], Y[20:], X[:10] + 0.1, Y[20:] + 0.1))
    )
    return options.measure_options(vectors, judged(on), weights=(0.2, 0.7), candidates=8)


def measured_ranking(on: On) -> object:
    ranking, given = on((torch.arange(50).reshape(10, 5) * 7) % 60 - 1), judged(on)
    return ranking_metrics.measure_ranking(
        ranking[: len(given)], given, (ranking_metrics.ideal_ranking(given))
    )


OWNERS = torch.arange(80) % 4

CASES: dict[str, Case] = {
    "anchors.coverage.cover": lambda on: [
        coverage.cover(unit(on)),
        coverage.cover(unit(on)[:6]),
        coverage.cover(unit(on)[:, :4]),
    ],
    "anchors.coverage.effective_ranks": lambda on: coverage.effective_ranks(unit(on)),
    "anchors.coverage.uncovered_shares": lambda on: coverage.uncovered_shares(unit(on)),
    "anchors.coverage.leverages": lambda on: [
        coverage.leverages(unit(on)),
        coverage.leverages(unit(on)[:6]),
    ],
    "anchors.coverage.ridge_factor": lambda on: coverage.ridge_factor(unit(on), ridge=1.0),
    "anchors.coverage.nearest_cosines": lambda on: coverage.nearest_cosines(unit(on)),
    "anchors.coverage.new_items": lambda on: coverage.new_items(
        on(X[:10]), on(torch.cat([X[5:15], X[12:14]]))
    ),
    "anchors.coverage.suggest": suggested,
    "anchors.drift.compare_embeddings": drifts,
    "anchors.drift.deviations": lambda on: drift.deviations(on(X), on(X + 0.1)),
    "anchors.drift.cosines": lambda on: drift.cosines(on(X), on(X + 0.1)),
    "anchors.drift.reorder_deviation": lambda on: drift.reorder_deviation(on(X), on(X.flip(0))),
    "anchors.drift.cosine_correlation": lambda on: drift.cosine_correlation(on(X), on(Y)),
    "anchors.foreign.compare_with_store": lambda on: [
        foreign.compare_with_store(on(X), on(POOL_X - 1), judged=each) for each in (None, on(ODD))
    ],
    "anchors.foreign.covered_share": lambda on: foreign.covered_share(*([unit(on)] * 2)),
    "anchors.health.examine": lambda on: health.examine(on(X.double()), fit_space(on(X))),
    "anchors.known_rows.index_known_rows": lambda on: known_rows.index_known_rows(on(X)),
    "anchors.known_rows.find_known_rows": known,
    "anchors.mismatch.compare_anchors": suspicious,
    "anchors.mismatch.judge_relatedness": lambda on: mismatch.judge_relatedness(on(X), on(Y)),
    "anchors.mismatch.reduce_to_span": lambda on: mismatch.reduce_to_span(on(X[:4].double())),
    "anchors.mismatch.leave_one_out_predictions": lambda on: [
        mismatch.leave_one_out_predictions(*(side[:rows] for side in unit_pair(on)))
        for rows in (6, 80)
    ],
    "anchors.mismatch.relatedness": lambda on: mismatch.relatedness(*unit_pair(on)),
    "anchors.mismatch.permutation_score": lambda on: mismatch.permutation_score(
        unit_pair(on)[1], unit_pair(on)[1]
    ),
    "anchors.mismatch.ridge_predictions": lambda on: [
        mismatch.ridge_predictions(x[:rows], y[:rows], x)
        for x, y in [unit_pair(on)]
        for rows in (6, 80)
    ],
    "anchors.foreign.choose_weights": weighted,
    "anchors.space_match.match_space": lambda on: space_match.match_space(
        on(POOL_X), {"x": on(X), "turned": on(X @ TURN)}, "turned"
    ),
    "anchors.health.describe_values": lambda on: health.describe_values(
        on(torch.cat([X, 20 * X[:1]]))
    ),
    "anchors.health.value_precision": lambda on: [
        health.value_precision(on(each.repeat(10, 1))) for each in (X, X.half().float(), X.round())
    ],
    "thresholds.score_pairs.translate_held_out": lambda on: [
        score_pairs.translate_held_out("graded", on(X[:40]), on(Y[:40]), OPTIONS, **roles).nbytes  # type: ignore[union-attr]
        for roles in ({}, {"counted": on(~ODD[:40])})
    ],
    "thresholds.score_pairs.sample_pairs": rows_of,
    "thresholds.score_pairs.same_item_scores": lambda on: score_pairs.same_item_scores(
        items(on), Scores.translated_native
    ),
    "thresholds.score_pairs.stratum_of": lambda on: score_pairs.stratum_of(on(X[:, 0].double())),
    "thresholds.calibration.calibrate": calibrated,
    "thresholds.calibration.expected_score": lambda on: calibration.expected_score(
        calibrated(on), 0.3, level=0.9
    ),
    "thresholds.calibration.covered_range": lambda on: calibration.covered_range(calibrated(on)),
    "thresholds.calibration.rate_matched_threshold": lambda on: calibration.rate_matched_threshold(
        (made := calibrated(on)).rows, 0.3, made.rows.given.argsort(), made.by_answer
    ),
    "thresholds.calibration.same_item_interval": lambda on: calibration.same_item_interval(
        calibrated(on), 0.9
    ),
    "thresholds.calibration.threshold_agreement": lambda on: calibration.threshold_agreement(
        calibrated(on), 0.2
    ),
    "thresholds.calibration.best_threshold": lambda on: calibration.best_threshold(
        (made := calibrated(on)).rows, made.rows.given > 0.2, made.by_answer
    ),
    "thresholds.calibration.join_strata": lambda on: calibration.join_strata(on(torch.arange(20))),
    "thresholds.calibration.bin_means": in_bins,
    "thresholds.calibration.fit_isotonic": lambda on: calibration.fit_isotonic(*in_bins(on)),
    "relevance.fuse_weight.held_out_cosine": lambda on: fuse_weight.held_out_cosine(on(X), on(Y)),
    "relevance.fuse_weight.choose_weight": lambda on: fuse_weight.choose_weight(on(X.double())),
    "relevance.rescoring.standardise": lambda on: rescoring.standardise(
        on(X[:, 0].double()), on(OWNERS)
    ),
    "relevance.rescoring.fuse": lambda on: rescoring.fuse(
        on(X[:, 0].double()), on(X[:, 1].double()), on(OWNERS), [0.2, 0.7]
    ),
    "relevance.ranking_metrics.collect": judged,
    "relevance.options.measure_options": searched_options,
    "relevance.ranking_metrics.ideal_ranking": lambda on: ranking_metrics.ideal_ranking(judged(on)),
    "relevance.ranking_metrics.measure_ranking": measured_ranking,
    "relevance.ranking_metrics.join_metrics": lambda on: ranking_metrics.join_metrics(
        [measured_ranking(on)] * 2
    ),
    "relevance.re_embedding.re_embedding_curve": lambda on: re_embedding.re_embedding_curve(
        "graded", on(X), on(Y), OPTIONS
    ),
    "relevance.re_embedding.judge_held_out": lambda on: re_embedding.judge_held_out(
        "graded", on(X), on(Y), OPTIONS
    ),
    "relevance.re_embedding.centrality": lambda on: re_embedding.centrality(on(POOL_Y), on(Y)),
    "relevance.rescoring.cosines": lambda on: [
        rescoring.cosines(on(X[: len(counts)]), on(POOL_X[:12]), counts)
        for counts in ((12,), (6, 6), (5, 7))
    ],
    "relevance.rescoring.rank": lambda on: rescoring.rank(on(X[:12, 0].double()), (5, 7), 3),
}
