"""Pools without pairs: aligned where they can be, and refused where they cannot."""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from app.maths.bootstrap import alignment, components
from app.maths.bootstrap.alignment import AlignmentSettings, align_pools, compare_maps
from tests.maths.bootstrap.clouds import constants
from tests.maths.bootstrap.topics import orthonormal, two_pools

SETTINGS = AlignmentSettings(attempts=2, size=500)
one_draw = constants(components, DRAWS=1)


def test_pools_that_share_no_item_are_aligned():
    x, y, truth = two_pools(1_600)
    steps = []
    found = align_pools(x, y, settings=SETTINGS, on_step=steps.append)
    assert 0.5 < found.estimate.right <= 1
    right = normalize(x @ truth)
    assert float((normalize(x @ found.rotation) * right).sum(dim=1).mean()) > 0.95
    assert (len(found.rows), found.directions.shape) == (500, (500, 10))
    assert found.rows.tolist() == sorted(set(found.rows.tolist()))
    assert float((found.directions * right[found.rows]).sum(dim=1).mean()) > 0.95
    assert [step.done for step in steps] == sorted(step.done for step in steps)


def test_maps_agree_with_themselves_and_not_with_others():
    x, y, truth = two_pools(1_000)
    other = orthonormal(9, 10, 12).T
    same = compare_maps(x, y, (truth, truth), seed=0)
    assert same.agreement == 1
    # Items without any topic are all equal, and so not found.
    assert same.right == same.found_again > 0.7
    strange = compare_maps(x, y, (truth, other), seed=0)
    assert max(strange.agreement, strange.right) < 0.1
    assert strange.index == 1_000


def test_an_alignment_of_a_part_of_the_space_is_not_called_good():
    """Two topics of these small pools are exchanged, by both attempts."""
    x, y, truth = two_pools(1_000, seed=3)
    found = align_pools(x, y, settings=SETTINGS)
    own = normalize(x @ truth)
    nearest = (normalize(x @ found.rotation) @ own.T).argmax(dim=1)
    assert float((nearest == torch.arange(len(x))).double().mean()) < 0.5
    assert found.estimate.right < 0.5


def test_wide_pools_are_reduced_and_the_made_pairs_have_all_dimensions(monkeypatch):
    x, y, _ = two_pools(1_000)
    empty = torch.zeros(len(x), 4)
    wide_x, wide_y = torch.cat([x, empty], dim=1), torch.cat([empty, y], dim=1)
    monkeypatch.setattr(alignment, "MAX_ALIGNED_DIMENSIONS", 13)
    found = align_pools(wide_x, wide_y, settings=SETTINGS)
    assert max(found.rotation.shape) <= 13
    assert found.directions.shape == (500, 14)
    # Each is a mean of rows of y, so the dimensions without variance stay empty.
    assert not found.directions[:, :4].any()
    assert torch.allclose(found.directions.norm(dim=1), torch.ones(500), atol=1e-5)
