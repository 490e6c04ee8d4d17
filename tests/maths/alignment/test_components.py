"""Independent components."""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from app.maths.alignment.components import independent_components
from tests.maths.alignment.clouds import mixing, orthonormal, sources, unit


def skewed(n: int, r: int) -> torch.Tensor:
    """(n, r) centred exponential variables."""
    drawn = torch.rand(n, r, generator=torch.Generator().manual_seed(0)).log().neg()
    return drawn - drawn.mean(dim=0)


def test_they_are_the_sources_that_were_mixed():
    mixed = mixing(1, 5, 6)
    found = independent_components(skewed(4_000, 5) @ mixed, 5, seed=3)
    cosines = found.prototypes @ normalize(mixed).T
    # The signs are those of the skewness: no source has its opposite.
    assert float(cosines.max(dim=0).values.min()) > 0.9
    assert len(cosines.argmax(dim=0).unique()) == 5


def test_a_rotation_of_the_pool_rotates_the_prototypes_and_keeps_how_they_relate():
    x, turn = skewed(4_000, 5) @ mixing(1, 5, 6), orthonormal(2, 6, 9)
    plain = independent_components(x, 5, seed=0)
    turned = independent_components(x @ turn, 5, seed=5)
    same = (plain.prototypes @ turn @ turned.prototypes.T).argmax(dim=1)
    assert torch.allclose(turned.prototypes[same], plain.prototypes @ turn, atol=0.02)
    for one, other in zip(plain.tables, turned.tables, strict=True):
        assert torch.allclose(other[same][:, same], one, atol=0.1)
    assert torch.allclose(turned.signature[same], plain.signature, atol=0.1)


def test_directions_without_variance_are_no_components():
    flat = torch.cat([sources(0, 500, 3), torch.zeros(500, 4)], dim=1)
    assert independent_components(unit(flat), 7, seed=0).prototypes.shape == (3, 7)
    assert independent_components(unit(flat), 2, seed=0).prototypes.shape == (2, 7)


def test_tables_are_standardised_and_say_nothing_about_a_component_itself():
    found = independent_components(unit(sources(0, 2_000) @ mixing(1, 8, 9)), 8, seed=0)
    off = ~torch.eye(8, dtype=torch.bool)
    for table in found.tables:
        assert not table.diagonal().any()
        assert abs(float(table[off].mean())) < 1e-5
        assert abs(float(table[off].std()) - 1) < 1e-4
