"""Estimates for an index of any size, from held-out anchors."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from app.maths.geometry.space import fit_space
from app.maths.quality.crossfit import hold_out
from app.maths.quality.estimate import estimate, more_partitions
from app.maths.quality.index_curves import IndexCurves, comparison_of, measure_curves
from app.maths.quality.metrics import unit
from app.maths.translators.methods import fit, resolve
from app.maths.translators.translator import apply
from research.definitions import measures

SIZES = (1_000, 3_000, 10_000, 100_000, 10**6, 10**9, 10**12)
FALLING = ("recall", "mrr")


def cloud(seed: int, count: int, noise: float = 0.3):
    """Two encoders (d_x = 24, d_y = 40) of the same latent items, each with its own noise."""
    generator = torch.Generator().manual_seed(5)
    maps = [torch.randn(16, dim, generator=generator).double() for dim in (24, 40)]
    generator = torch.Generator().manual_seed(seed)
    latent = torch.randn(count, 16, generator=generator).double()
    return [
        latent @ each + noise * torch.randn(count, each.shape[1], generator=generator).double() * 4
        for each in maps
    ]


@cache
def basis_of(anchors: int, sample: int = 0, seed: int = 0) -> IndexCurves:
    x, y = cloud(seed, anchors)
    options = resolve("graded", {}, anchors=anchors)
    held = hold_out("graded", x, y, options)
    partitions = more_partitions(held, "graded", x, y, options)
    store = cloud(99, sample)[1] if sample else None
    return measure_curves(partitions, y, store)


def found(anchors: int, size: int, seed: int = 0):
    """What other items find in an index of `size` of them, by the fit to all anchors."""
    x, y = cloud(seed, anchors)
    translator = fit("graded", fit_space(x), fit_space(y), resolve("graded", {}, anchors=anchors))
    others = cloud(77, 2000)
    rows = [slice(start, start + size) for start in range(0, 2000 - size + 1, size)]
    means = []
    for each in rows:
        items = measures(
            apply(translator, others[0][each]).vectors.double() - y.mean(dim=0),
            others[1][each] - y.mean(dim=0),
        )
        means.append([float(value.mean()) for value in (items["recall"], items["mrr"])])
    return dict(zip(("recall", "mrr"), torch.tensor(means).mean(dim=0).tolist(), strict=True))


@pytest.mark.parametrize("anchors", [10, 60])
def test_an_estimate_falls_with_the_index(anchors):
    estimates = [estimate(basis_of(anchors), size) for size in SIZES]
    for name in FALLING:
        values = [each.measures[name].value for each in estimates]
        assert values == sorted(values, reverse=True), name
        assert anchors == 10 or values[-1] < 0.5 * values[0]
    for each in estimates:
        assert all(0 <= m.low <= m.value <= m.high <= 1 for m in each.measures.values())


def test_a_sample_of_as_many_vectors_measures_the_estimate():
    """The index of a fold and the sample has 60 + 940 items."""
    with_sample, without = (estimate(basis_of(300, sample), 1_000) for sample in (940, 0))
    assert (with_sample.measured, without.measured) == (True, False)
    assert (without.anchors, without.index, without.neighbours) == (300, 1_000, 10)
    true = found(300, 1_000)
    for name in ("recall", "mrr"):
        for made, near in ((with_sample, 0.03), (without, 0.06)):
            each = made.measures[name]
            assert each.value == pytest.approx(true[name], abs=near)
            assert each.low <= true[name] <= each.high


def test_anchors_in_a_sample_are_not_searched():
    """An anchor that is drawn from the store is there once: its copy is no other item."""
    x, y = cloud(0, 100)
    held = hold_out("graded", x, y, resolve("graded", {}, anchors=100))
    store = cloud(99, 200)[1].float()
    copies = torch.cat([y[:50].float(), y[50:].half().float()])

    def curves(sample: torch.Tensor | None) -> IndexCurves:
        return measure_curves([held], y, sample)

    assert curves(torch.cat([store, copies])) == curves(store)
    assert curves(copies) == curves(None)


def test_lengths_count_where_they_differ():
    x, y = map(unit, cloud(0, 60))
    longer = x * torch.linspace(1, 2, 60)[:, None]
    assert comparison_of(longer, y, by_product=True) == "product"
    assert comparison_of(x, 5 * y, by_product=True) == "cosine"
    assert comparison_of(longer, y, by_product=False) == "cosine"
