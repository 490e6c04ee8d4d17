"""Every change of an encoder's vectors is recognised, from rounding to another encoder."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.demo.pack import load_pack
from app.maths.anchors import drift
from app.maths.anchors.drift import (
    FEWEST_FOR_ROTATION,
    HALF_DEVIATION,
    MAX_COMPARED_ROWS,
    SAME_DEVIATION,
    WIDE_DIM,
    compare_embeddings,
)
from app.maths.quality.metrics import unit
from tests.maths.bootstrap.clouds import normal, rotation

PACK = load_pack()
#: the pack is of float16: a little noise makes its numbers float32 ones
OLD = PACK.vectors["minilm6-384"][:300] * (
    1 + 1e-3 * torch.randn(300, 384, generator=torch.Generator().manual_seed(0))
)
LENGTHS = PACK.vectors["minilm3-512"][:300]


def test_the_same_vectors_are_unchanged_to_the_bit():
    found = compare_embeddings(OLD, OLD.clone())
    assert (found.verdict, found.rounding, found.scale, found.held_out) == (
        "unchanged",
        "none",
        1.0,
        None,
    )
    assert int(found.changed.sum()) == 0
    assert float(found.deviations.max()) == 0.0


@pytest.mark.parametrize(
    ("change", "rounding"),
    [
        (lambda x: x * (1 + 1e-6 * normal(1, 300, 384)), "float32"),
        (lambda x: x.half().float(), "half"),
        (lambda x: x.bfloat16().float(), "half"),
    ],
)
def test_rounding_is_no_change_and_is_reported(change, rounding):
    found = compare_embeddings(OLD, change(OLD))
    assert (found.verdict, found.rounding) == ("unchanged", rounding)
    assert float(found.deviations.max()) <= (
        SAME_DEVIATION if rounding == "float32" else HALF_DEVIATION
    )


def test_a_move_by_one_percent_is_found_unless_noise_explains_it():
    """Noise, and a rotation by that angle in every plane of two coordinates."""
    old, share = OLD[:42, :64], 0.01
    noisy = old + share * old.norm(dim=1, keepdim=True) * unit(normal(5, 42, 64))
    turned = old * math.cos(share)
    turned[:, ::2] -= old[:, 1::2] * math.sin(share)
    turned[:, 1::2] += old[:, ::2] * math.sin(share)
    for new in (noisy, turned):
        assert float(drift.deviations(old, new).median()) == pytest.approx(share, rel=0.01)
        assert compare_embeddings(old, new).verdict == "changed"
        assert compare_embeddings(old, new, noise=share / 4).verdict == "changed"
        assert compare_embeddings(old, new, noise=share / 2).verdict == "unchanged"


@given(scale=st.floats(1e-6, 1e6).filter(lambda scale: abs(scale - 1) > 3 * HALF_DEVIATION))
def test_another_scale_is_rescaled_and_reported(scale):
    found = compare_embeddings(OLD[:40], OLD[:40] * scale)
    assert found.verdict == "rescaled"
    assert found.scale == pytest.approx(scale, rel=1e-5)
    assert int(found.changed.sum()) == 0


def test_vectors_that_are_normalised_now_are_rescaled_in_half_precision_too():
    assert compare_embeddings(LENGTHS, unit(LENGTHS).float()).verdict == "rescaled"
    assert compare_embeddings(OLD, (3 * OLD).half().float()).verdict == "rescaled"


@pytest.mark.parametrize(("rows", "dim"), [(120, 384), (120, 24)])
def test_a_rotation_is_found_above_and_below_the_dimension_with_any_scale_and_shift(rows, dim):
    old = OLD[:rows, :dim]
    for new in (
        old @ rotation(2, dim),
        5 * old @ rotation(3, dim) + 1,
        (old @ rotation(2, dim)).half().float(),
    ):
        found = compare_embeddings(old, new)
        assert found.verdict == "rotated"
        assert bool(found.changed.all())
        assert found.held_out.nothing < 0.2


def test_another_encoder_is_changed_and_reports_the_quality_of_a_translator():
    for new in (LENGTHS[:200], PACK.vectors["static-256"][:200]):
        found = compare_embeddings(OLD[:200], new)
        assert (found.verdict, found.moved, found.deviations, found.cosines) == (
            "changed",
            False,
            None,
            None,
        )
        assert 0.6 < found.held_out.translator < 0.95
        assert found.held_out.translator > found.held_out.nothing + 0.5
        assert found.z > 15
    turned = compare_embeddings(
        PACK.vectors["static-256"][:100], PACK.vectors["minilm6-384"][:100, :256]
    )
    assert (turned.verdict, turned.cosines is None) == ("changed", False)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_few_replaced_rows_are_named_whether_or_not_the_rest_is_scaled(scale):
    new = OLD.clone() * scale
    rows = [3, 77, 210]
    new[rows] = scale * OLD[[4, 78, 211]]
    found = compare_embeddings(OLD, new)
    assert found.verdict == "partly-changed"
    assert found.changed.nonzero().flatten().tolist() == rows


def test_a_small_change_of_few_rows_is_not_taken_for_the_rounding_of_all():
    new = OLD.clone()
    new[5] *= 1.01
    assert compare_embeddings(OLD, new).changed.nonzero().flatten().tolist() == [5]
    assert compare_embeddings(OLD, OLD.bfloat16().float()).verdict == "unchanged"


def test_the_same_vectors_in_another_order_are_moved_and_unrelated():
    found = compare_embeddings(
        OLD, OLD[torch.randperm(300, generator=torch.Generator().manual_seed(5))]
    )
    assert (found.verdict, found.moved) == ("changed", True)
    assert abs(found.z) < 4
    assert not compare_embeddings(OLD, OLD[:1].repeat(300, 1)).moved


def test_few_rows_report_what_they_allow():
    for rows in (1, 2, FEWEST_FOR_ROTATION - 1):
        assert compare_embeddings(OLD[:rows], OLD[:rows]).verdict == "unchanged"
        assert compare_embeddings(OLD[:rows], 2 * OLD[:rows]).verdict == "rescaled"
        turned = compare_embeddings(OLD[:rows], OLD[:rows] @ rotation(8, 384))
        assert (turned.verdict, turned.held_out, turned.z) == ("changed", None, None)


@pytest.mark.parametrize("rows", [FEWEST_FOR_ROTATION, 9])
def test_a_rotation_of_too_few_rows_to_hold_any_out_is_told_by_their_cosines(rows):
    old = OLD[:rows]
    for new in (old @ rotation(8, 384), 5 * old @ rotation(9, 384) + 1):
        found = compare_embeddings(old, new)
        assert (found.verdict, found.held_out) == ("rotated", None)
        assert bool(found.changed.all())
    for new in (
        LENGTHS[:rows],
        normal(10, rows, 384),
        old.flip(0),
        unit(old + 0.004 * normal(7, rows, 384)).float(),
    ):
        assert compare_embeddings(old, new).verdict == "changed"
    wide = normal(11, rows, WIDE_DIM), normal(12, rows, WIDE_DIM)
    assert compare_embeddings(*wide).verdict == "changed"


def test_no_more_rows_are_compared_with_each_other_than_the_bound_however_narrow_they_are(
    monkeypatch,
):
    old = normal(14, 30_000, 3)
    assert (
        len(drift._compared_rows(old.double(), old.double(), seed=0)) == MAX_COMPARED_ROWS == 2048
    )
    monkeypatch.setattr(drift, "MAX_COMPARED_ROWS", 50)
    found = compare_embeddings(old[:200], old[:200] @ rotation(15, 3))
    assert (found.verdict, found.held_out.rows, len(found.changed)) == ("rotated", 50, 200)


@pytest.mark.parametrize(
    "new",
    [
        torch.zeros(20, 384),
        torch.ones(20, 384),
        torch.full((20, 7), 1e30),
        1e-30 * torch.eye(20, 384),
    ],
)
def test_degenerate_vectors_are_a_change_and_no_error(new):
    found = compare_embeddings(OLD[:20], new)
    assert found.verdict == "changed"
    assert compare_embeddings(new, OLD[:20]).verdict == "changed"
    assert compare_embeddings(new, new).verdict == "unchanged"
