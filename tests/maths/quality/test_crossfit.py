"""The estimate from held-out anchors does not leak."""

from __future__ import annotations

import pytest
import torch

from app.maths.geometry.space import fit_space
from app.maths.quality import crossfit
from app.maths.quality.crossfit import FEWEST_DISTINCT, HELD_OUT_FOLDS, hold_out
from app.maths.quality.metrics import row_cosines
from app.maths.translators.methods import fit, resolve
from app.maths.translators.translator import apply
from tests.maths.clouds import normal


def test_anchors_are_translated_by_the_other_folds():
    source, target = normal(4, 40, 5), normal(5, 40, 5)
    options = resolve("procrustes", {}, anchors=40)
    fold_of = torch.randperm(40, generator=torch.Generator().manual_seed(0)) % HELD_OUT_FOLDS
    found = hold_out("procrustes", source, target, options)
    assert torch.equal(found.fold_of, fold_of)
    assert bool(found.first.all())
    for fold in range(HELD_OUT_FOLDS):
        held = fold_of == fold
        translator = fit("procrustes", fit_space(source[~held]), fit_space(target[~held]), options)
        expected = apply(translator, source[held]).vectors.double()
        assert torch.allclose(found.translated[held], expected, atol=1e-12)


@pytest.mark.parametrize("given", [{}, {"keep_norms": True}, {"renormalise": False}])
def test_folds_of_a_kernel_that_share_means_ridge_and_whitening_hardly_differ(monkeypatch, given):
    source = normal(20, 600, 8)
    target = (source @ normal(21, 8, 12) / 3).tanh() + 0.1 * normal(22, 600, 12) + 1.0
    options = resolve("kernel", given, anchors=600)
    shared = hold_out("kernel", source, target, options)
    monkeypatch.setattr(crossfit, "FEWEST_SHARED", 601)
    alone = hold_out("kernel", source, target, options)
    assert torch.equal(shared.fold_of, alone.fold_of)
    assert bool(shared.first.all())
    distance = (shared.translated - alone.translated).norm(dim=1)
    assert float(distance.mean()) < 0.05 * float((target - target.mean(dim=0)).norm(dim=1).mean())


def test_of_many_anchors_some_folds_are_held_out_and_the_others_do_not_count(monkeypatch):
    source, target, options = (
        normal(60, 100, 5),
        normal(61, 100, 4),
        resolve("graded", {}, anchors=100),
    )
    whole = hold_out("graded", source, target, options)
    monkeypatch.setattr(crossfit, "MAX_HELD_OUT", 30)
    some = hold_out("graded", source, target, options)
    assert torch.equal(some.first, whole.first & (whole.fold_of < 2))
    assert torch.equal(some.translated[some.first], whole.translated[some.first])
    assert int(some.first.sum()) == 40


def test_there_is_an_estimate_from_ten_distinct_anchors_on_unless_a_fold_cannot_be_fitted():
    source, target = normal(8, FEWEST_DISTINCT, 5), normal(9, FEWEST_DISTINCT, 4)
    assert hold_out("graded", source[:-1], target[:-1], resolve("graded", {}, anchors=9)) is None
    copies = (side[:-1].repeat(5, 1) for side in (source, target))
    assert hold_out("graded", *copies, resolve("graded", {}, anchors=45)) is None
    # Row i shares its source with one neighbour and its target with the other: one group.
    rows = torch.arange(300)
    chain = normal(50, 151, 2)[rows // 2], normal(51, 151, 2)[(rows + 1) // 2]
    assert hold_out("ridge", *chain, resolve("ridge", {}, anchors=300)) is None
    # A fold whose other anchors are all the same cannot be fitted.
    lonely = torch.zeros(10, 4, dtype=torch.float64)
    lonely[0] = 1.0
    assert hold_out("graded", lonely, target, resolve("graded", {}, anchors=10)) is None
    assert hold_out("graded", source, target, resolve("graded", {}, anchors=10)) is not None
    # irp averages no more subspaces than the anchors of a fold
    assert hold_out("irp", source, target, resolve("irp", {"omega": 10}, anchors=10)) is not None


@pytest.mark.parametrize("copied", ["both", "source", "target"])
def test_copies_of_anchors_do_not_leak_into_the_estimate(copied):
    """Twelve unrelated pairs, eight times each: only a fit that saw a copy can know the answer."""
    source, target = normal(40, 12, 6), normal(41, 12, 6)
    many_x, many_y = source.repeat(8, 1), target.repeat(8, 1)
    if copied == "source":
        many_y = many_y + 1e-3 * normal(42, 96, 6)
    if copied == "target":
        many_x = many_x + 1e-3 * normal(43, 96, 6)
    estimate = hold_out("graded", many_x, many_y, resolve("graded", {}, anchors=96))
    assert int(estimate.first.sum()) == 12
    mean = many_y.mean(dim=0)
    pairs = (estimate.translated - mean)[estimate.first], (many_y - mean)[estimate.first]
    assert float(row_cosines(*pairs).mean()) < 0.6
