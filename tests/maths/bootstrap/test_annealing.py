"""Annealing, compared with the whole plan in float64, and its invariance to axes and order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.maths.bootstrap import annealing, neighbours
from app.maths.bootstrap.annealing import (
    anneal_round,
    find_temperature,
    map_rows,
    principal_directions,
)
from app.maths.bootstrap.neighbours import no_beat
from app.maths.bootstrap.pools import fit_pools
from tests.maths.bootstrap.clouds import constants, normal, unit

seeds = st.integers(0, 2**31)
# tables of less than a row to a few rows: every function works in blocks
small_tables = constants(neighbours, TABLE_BYTES=1_000)


def pool(seed: int, n: int, d: int, *, decay: float = 0.5) -> Tensor:
    """Centred unit rows whose directions vary less and less."""
    raw = normal(seed, n, d) * torch.arange(1, d + 1) ** -decay
    return fit_pools(raw, raw).x


def entropic(q: Tensor, y: Tensor, potential: Tensor, tau: float) -> Tensor:
    return torch.softmax((q.double() @ y.double().T + potential.double()) / tau, dim=1)


def surprise(plan: Tensor) -> float:
    """Perplexity: exp of the mean entropy of the rows."""
    return float((-(plan * plan.clamp_min(1e-300).log()).sum(dim=1)).mean().exp())


@settings(max_examples=10)
@given(seed=seeds, n=st.integers(2, 40), m=st.integers(2, 40), wanted=st.floats(1.5, 20))
def test_a_round_equals_that_of_the_whole_plan_for_any_memory(seed, n, m, wanted):
    x, y, known = unit(seed, n, 6), unit(seed + 1, m, 5), normal(seed + 2, 6, 5)
    q, before = map_rows(x, normal(seed + 3, 6, 5), 0.5), 0.2 * normal(seed + 4, m)
    overlap, potential, fit = anneal_round(x, y, q, known, before, wanted, beat=no_beat)
    tau = float(find_temperature(q, y, before, wanted, beat=no_beat))
    plan = entropic(q, y, before, tau)
    near = {"rtol": 0.0, "atol": 2e-6 * n / min(1.0, tau)}
    torch.testing.assert_close(
        overlap.double(), x.double().T @ plan @ y.double() + known.double(), **near
    )
    change = (plan.sum(dim=0) * m / n).clamp_min(1e-30).log()
    change = change.clamp(-annealing.LARGEST_CHANGE, annealing.LARGEST_CHANGE)
    torch.testing.assert_close(
        potential.double(), before.double() - tau * change, rtol=0, atol=1e-4
    )
    expected = float((q.double() * (plan @ y.double())).sum(dim=1).mean())
    assert fit == pytest.approx(expected, abs=near["atol"])


@given(seed=seeds, n=st.integers(1, 80), m=st.integers(2, 80), share=st.floats(0.0, 1.0))
def test_the_rows_have_the_target_perplexity_or_the_nearest_in_range(seed, n, m, share):
    q, y, potential = unit(seed, n, 5), unit(seed + 1, m, 5), 0.1 * normal(seed + 2, m)
    wanted = 1 + share * (m - 1)
    tau = find_temperature(q, y, potential, wanted, beat=no_beat)
    coldest, hottest = (
        surprise(entropic(q, y, potential, limit))
        for limit in (annealing.COLDEST, annealing.HOTTEST)
    )
    assert annealing.COLDEST <= tau <= annealing.HOTTEST
    assert surprise(entropic(q, y, potential, tau)) == pytest.approx(
        min(max(wanted, coldest), hottest), rel=0.01
    )


@pytest.mark.parametrize(
    ("n", "d", "decay"),
    [(500, 12, 0.5), (400, 300, 0.6), (700, annealing.MAX_EXACT_DIMENSIONS + 60, 0.7)],
)
def test_directions_are_the_eigenvectors_of_the_covariance(n, d, decay):
    rows = pool(1, n, d, decay=decay)
    found = principal_directions(rows)
    variance, vectors = torch.linalg.eigh(rows.double().T @ rows.double() / n)
    kept = min(d, annealing.MAX_DIMENSIONS)
    assert found.along.shape == (n, kept)
    lead = slice(0, min(kept, 200))
    for variances in (found.variance, found.along.double().square().mean(dim=0)):
        torch.testing.assert_close(variances[lead], variance.flip(0)[lead], rtol=2e-4, atol=1e-8)
    expected, along = rows.double() @ vectors[:, -kept:], found.along.double()
    torch.testing.assert_close(along @ along.T, expected @ expected.T, rtol=0, atol=5e-3)
