"""The choice of `auto`, its reason, and the estimate of its quality."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.demo.pack import load_pack
from app.maths.geometry.space import fit_space
from app.maths.quality import selection
from app.maths.quality.candidates import (
    KERNEL_ANCHORS,
    KERNEL_POWERS,
    LINEAR_CANDIDATES,
    Candidate,
    candidates_for,
    decode_power,
    decoder_options,
    default_candidate,
)
from app.maths.quality.crossfit import FEWEST_DISTINCT, cut_into_folds, hold_out
from app.maths.quality.selection import (
    DECISIVE_ERRORS,
    LEAST_LEAD,
    MAX_SELECTION_ANCHORS,
    Choice,
    choose_method,
)
from app.maths.translators import methods
from research.definitions import measure
from tests.maths.clouds import normal

USES = list(KERNEL_POWERS)


@pytest.fixture(scope="module")
def real() -> tuple[Tensor, Tensor]:
    pack = load_pack()
    source, target, *_ = (vectors[:200].double() for vectors in pack.vectors.values())
    return source, target


@pytest.fixture(scope="module")
def choice_for_real(real: tuple[Tensor, Tensor]) -> Choice:
    return choose_method(*real)


def related(k: int, noise: float) -> tuple[Tensor, Tensor]:
    source = normal(1, k, 30) * torch.linspace(1, 0.1, 30)
    return source, source @ normal(2, 30, 40) + noise * normal(3, k, 40)


def test_the_numbers_of_each_candidate_are_those_of_its_held_out_translations(real):
    """Spectral coordinates, without a full matrix, give the numbers of fitting, applying and
    measuring.
    """
    source, target = real[0].clone(), real[1].clone()
    source[7] = source[3]  # copies share a fold and count once
    first, _ = cut_into_folds(source, target, folds=5, seed=0)
    mean = target[first].mean(dim=0)
    picked = [
        *LINEAR_CANDIDATES[::9],
        Candidate("procrustes", {}),
        default_candidate("retrieval", KERNEL_ANCHORS),
        default_candidate("cosine", KERNEL_ANCHORS),
    ]
    for scored in choose_method(source, target, candidates=picked).candidates:
        options = methods.resolve(scored.method, scored.options, anchors=len(source))
        held = hold_out(scored.method, source, target, options)
        exact = measure((held.translated - mean)[first], (target - mean)[first])
        assert exact.n == 199
        for name in ("recall", "mrr", "cosine"):
            assert getattr(scored, name) == pytest.approx(getattr(exact, name), abs=2e-3), (
                scored,
                name,
            )
        assert scored.cosine == pytest.approx(exact.cosine, abs=1e-5)


@pytest.mark.parametrize("use", USES)
def test_the_choice_is_the_default_or_better_beyond_its_error(use):
    for noise in (0.0, 0.3, 3.0):
        choice = choose_method(*related(120, noise), prefer=use)
        usual = default_candidate(use, 120)
        scores = choice.candidates
        kept = next(
            each for each in scores if (each.method, each.options) == (usual.method, usual.options)
        )
        best = scores[0]
        told = best.score - kept.score > max(LEAST_LEAD[use], DECISIVE_ERRORS * best.error)
        expected = best if told else kept
        assert (choice.method, choice.options) == (
            expected.method,
            methods.resolve(expected.method, expected.options, anchors=120),
        )
        assert choice.reason.startswith("the best method" if told else "the usual method")


def test_retrieval_is_a_kernel_unless_a_linear_map_finds_far_more_neighbours():
    choice = choose_method(*related(300, 1.0))
    by_method = {each.method: each for each in reversed(choice.candidates)}
    assert 0 < by_method["graded"].score - by_method["kernel"].score < LEAST_LEAD["retrieval"]
    assert choice.method == "kernel"
    assert choice.reason == "the usual method: no other is clearly better"
    versions = choose_method(*related(KERNEL_ANCHORS, 0.0))
    assert versions.method == "graded"
    assert versions.reason == "the best method, clearly better than the usual one"


def test_few_anchors_are_no_kernel(real):
    few = choose_method(*(side[: KERNEL_ANCHORS - 1] for side in real))
    assert few.method == "graded"


def test_the_preference_decides_the_measure(real, choice_for_real):
    every = candidates_for("retrieval")
    assert choice_for_real.candidates[0].recall == max(
        each.recall for each in choice_for_real.candidates
    )
    best = {
        use: choose_method(*real, prefer=use, candidates=every).candidates[0]
        for use in ("cosine", "classification")
    }
    every = choice_for_real.candidates
    assert best["cosine"].cosine == max(each.cosine for each in every)
    assert best["classification"].agreement + best["classification"].recall == pytest.approx(
        max(each.agreement + each.recall for each in every)
    )


def test_for_a_rotation_among_few_anchors_a_rotation_is_chosen():
    """A rotation is exact where the spectrum is flat and anchors are enough; below k = d no ridge
    is.
    """
    source, (rotation, _) = normal(4, 60, 40), torch.linalg.qr(normal(5, 40, 40))
    choice = choose_method(source, source @ rotation + 3)
    assert choice.found["mrr"] > 0.95
    best = choice.candidates[0]
    assert best.mrr > 0.99


def test_the_clients_output_options_are_kept_and_decide_nothing(real, choice_for_real):
    plain = choice_for_real
    shaped = choose_method(*real, shape={"renormalise": False, "keep_norms": True})
    assert shaped.options == {**plain.options, "renormalise": False, "keep_norms": True}
    assert (shaped.method, shaped.found) == (plain.method, plain.found)


def test_below_ten_distinct_anchors_the_default_is_chosen_with_its_reason():
    copies = torch.arange(40) % (FEWEST_DISTINCT - 1)
    for rows in (torch.arange(FEWEST_DISTINCT - 1), copies):
        choice = choose_method(
            normal(8, FEWEST_DISTINCT, 6)[rows], normal(9, FEWEST_DISTINCT, 5)[rows]
        )
        assert (choice.method, choice.folds, choice.candidates, choice.found) == (
            "graded",
            0,
            (),
            {},
        )
        assert "too few" in choice.reason


def test_more_anchors_than_it_looks_at_are_sampled_and_all_of_them_fitted():
    k = MAX_SELECTION_ANCHORS + 50
    source, target = normal(10, k, 6), normal(11, k, 6)
    choice = choose_method(
        source, target, candidates=LINEAR_CANDIDATES[:5], usual=LINEAR_CANDIDATES[0]
    )
    assert choice.anchors == MAX_SELECTION_ANCHORS
    assert methods.fit(
        choice.method, fit_space(source), fit_space(target), choice.options
    ).dims == (6, 6)


def bent(k: int) -> tuple[Tensor, Tensor]:
    """Targets that are no linear function of the sources, which few anchors do not show."""
    source = normal(20, k, 8)
    return source, (2 * source @ normal(21, 8, 30)).tanh() @ normal(22, 30, 12)


def compare_at_full_size(monkeypatch, anchors: tuple[Tensor, Tensor], few: int, **more) -> Choice:
    monkeypatch.setattr(selection, "MAX_SELECTION_ANCHORS", few)
    linear = Candidate("graded", {"decode_power": 0.0, "ridge": 0.3})
    candidates = [linear, candidates_for("cosine")[-1]]
    return choose_method(*anchors, candidates=candidates, usual=linear, prefer="cosine", **more)


def test_a_kernel_that_few_anchors_do_not_show_is_chosen_with_all_of_them(monkeypatch):
    anchors = bent(1200)
    few = [side[:30] for side in anchors]
    assert compare_at_full_size(monkeypatch, few, 30).method == "graded"
    found = compare_at_full_size(monkeypatch, anchors, 30)
    assert (found.method, found.folds) == ("kernel", 5)
    assert found.reason.startswith("a kernel, clearly better")
    assert found.options == methods.resolve("kernel", {"decode_power": 0.0}, anchors=1200)
    held = found.found["cosine"]
    assert held > 1.1 * max(each.cosine for each in found.candidates if each.method == "graded")


def test_every_default_is_a_candidate_that_does_not_depend_on_the_pair():
    for prefer in USES:
        for anchors in (KERNEL_ANCHORS - 1, KERNEL_ANCHORS):
            assert default_candidate(prefer, anchors) in candidates_for(prefer)


@pytest.mark.parametrize(
    ("encoded", "decoded", "ridge"),
    [(0.0, 1.0, 1.0), (0.25, 1.0, 1.0), (0.5, 0.75, 1.0), (1.0, 0.25, None)],
)
def test_the_decoder_completes_the_power_and_ridge_of_the_encoding(encoded, decoded, ridge):
    options = decoder_options(encoded)
    assert (options["decode_power"], decode_power(encoded), options.get("ridge")) == (
        decoded,
        decoded,
        ridge,
    )
