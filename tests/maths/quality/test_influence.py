"""The influence of an anchor, in closed form and by fits without it; and the named rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.demo.pack import load_pack
from app.errors import InvalidOption
from app.maths.anchors import mismatch as influences
from app.maths.anchors.mismatch import influence
from app.maths.geometry.space import fit_space
from app.maths.quality.crossfit import FEWEST_DISTINCT
from tests.maths.clouds import normal

seeds = st.integers(0, 2**31)


def without(x: Tensor, y: Tensor, ridge: float, rows: list[int], item: int) -> Tensor:
    """Unit anchor `item` by ridge regression on all unit anchors but `rows`."""
    kept = [row for row in range(len(x)) if row not in rows]
    fitted = torch.linalg.solve(
        x[kept].T @ x[kept] + ridge * torch.eye(x.shape[1]).double(), x[kept].T @ y[kept]
    )
    return x[item] @ fitted


def refitted(source: Tensor, target: Tensor, ridge: float) -> Tensor:
    """Gain in cosine of leaving out each row, by k^2 fits."""
    x, y = fit_space(source).unit, fit_space(target).unit
    gains = []
    for left in range(len(x)):
        gain = 0.0
        for item in (row for row in range(len(x)) if row != left):
            with_it, without_it = (
                without(x, y, ridge, rows, item) for rows in ([item], [item, left])
            )
            cosines = [
                torch.nn.functional.cosine_similarity(each, y[item], dim=0)
                for each in (with_it, without_it)
            ]
            gain += float(cosines[1] - cosines[0])
        gains.append(gain / (len(x) - 1))
    return torch.tensor(gains, dtype=torch.float64)


@pytest.mark.parametrize(("k", "dx", "dy"), [(12, 5, 4), (8, 20, 6), (9, 9, 15), (2, 3, 3)])
@pytest.mark.parametrize("ridge", [0.05, 1.0])
def test_the_closed_form_equals_fits_without_the_row(k, dx, dy, ridge):
    source, target = normal(k, k, dx), normal(dx, k, dy)
    gains = refitted(source, target, ridge)
    found = influence(source, target, ridge=ridge)
    torch.testing.assert_close(found.gain, gains, rtol=0, atol=1e-8)
    x, y = fit_space(source).unit, fit_space(target).unit
    own = [
        float(torch.nn.functional.cosine_similarity(without(x, y, ridge, [i], i), y[i], dim=0))
        for i in range(k)
    ]
    torch.testing.assert_close(found.own, torch.tensor(own, dtype=torch.float64), rtol=0, atol=1e-8)


@given(seed=seeds, k=st.integers(3, 25), scale=st.floats(0.01, 100))
def test_influence_does_not_change_with_rotation_scale_and_shift_and_follows_the_rows(
    seed, k, scale
):
    source, target = normal(seed, k, 6), normal(seed + 1, k, 5)
    rotation, _ = torch.linalg.qr(normal(seed + 2, 6, 6))
    order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
    plain = influence(source, target, ridge=0.3)
    moved = influence(
        (scale * source @ rotation + 1)[order], (target / scale - 2)[order], ridge=0.3
    )
    torch.testing.assert_close(moved.gain, plain.gain[order], rtol=0, atol=1e-7)


@pytest.mark.parametrize("held", [1, 17, 10_000])
def test_results_do_not_depend_on_chunks(monkeypatch, held):
    source, target = normal(2, 40, 6), normal(3, 40, 5)
    whole = influence(source, target)
    monkeypatch.setattr(influences, "PAIRS_PER_STEP", held)
    torch.testing.assert_close(influence(source, target).gain, whole.gain, rtol=0, atol=1e-14)


def test_above_the_bound_fewer_judges_give_nearly_the_same_gains(monkeypatch):
    source = normal(4, 400, 10)
    target = source @ normal(5, 10, 10) + normal(6, 400, 10)
    whole = influence(source, target)
    monkeypatch.setattr(influences, "MAX_INFLUENCE_PAIRS", 400 * 200)
    part = influence(source, target)
    assert (whole.judges, part.judges) == (399, 200)
    assert float(torch.corrcoef(torch.stack([whole.gain, part.gain]))[0, 1]) > 0.8
    assert part.hurting == influence(source, target).hurting


def planted(seed: int, share: float) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """300 real anchors by each pair of the demo's encoders, with some of the targets swapped."""
    pack, generator = load_pack(), torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(pack.sentences), generator=generator)[:300]
    swapped = torch.randperm(300, generator=generator)[: round(300 * share)]
    pairs = []
    for source in pack.vectors:
        for target in pack.vectors:
            if source != target:
                wrong = pack.vectors[target][rows].double()
                wrong[swapped] = wrong[swapped.roll(1)]
                pairs.append((pack.vectors[source][rows].double(), wrong))
    return pairs, swapped


@pytest.mark.parametrize(
    ("share", "recall", "precision"), [(0.05, 0.9, 0.95), (2 / 300, 0.95, 0.75), (0.1, 0.85, 0.95)]
)
def test_swapped_pairs_of_real_anchors_are_named_and_few_others(share, recall, precision):
    named = right = wrong = 0
    for seed in (0, 1):
        pairs, swapped = planted(seed, share)
        for source, target in pairs:
            hurting = influence(source, target).hurting
            named += len(hurting)
            right += len(set(hurting) & set(swapped.tolist()))
            wrong += len(swapped)
    assert right / wrong >= recall
    assert right / named >= precision


def test_without_the_named_rows_the_others_are_translated_better():
    for source, target in planted(2, 0.05)[0]:
        before = influence(source, target)
        kept = [row for row in range(300) if row not in before.hurting]
        after = influence(source[kept], target[kept])
        assert float(after.own.mean()) > float(before.own[kept].mean()) + 0.005
        assert before.hurting == sorted(before.hurting, key=lambda row: -float(before.gain[row]))


def test_of_fewer_than_ten_anchors_none_is_named_and_copies_and_zero_anchors_are_no_trouble():
    source = normal(7, FEWEST_DISTINCT - 1, 3)
    target = source.clone()
    target[0] = -100 * target[0]
    assert influence(source, target).hurting == []
    copies = normal(8, 10, 4).repeat(3, 1)
    copies[0] = copies[1:].mean(dim=0)
    found = influence(copies, copies)
    assert bool(found.gain.isfinite().all() and found.own.isfinite().all())


@pytest.mark.parametrize("ridge", [0.0, -1.0, float("nan"), 1e9])
def test_a_ridge_that_leaves_a_direction_to_one_row_is_refused(ridge):
    with pytest.raises(InvalidOption) as refused:
        influence(normal(9, 12, 3), normal(10, 12, 3), ridge=ridge)
    assert refused.value.field == "options.ridge"
