"""The entropic plan, streamed, against the whole of it in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.bootstrap import neighbours
from research.sinkhorn import column_argmax, softmin, source_potential
from tests.maths.bootstrap.clouds import normal

sizes = st.integers(1, 30)
seeds = st.integers(0, 2**31)
epsilons = st.sampled_from([1e-4, 1e-3, 1e-2, 0.1, 1.0])


def sinkhorn(x: Tensor, y: Tensor, *, epsilon: float, steps: int) -> tuple[Tensor, Tensor]:
    """Both potentials."""
    u = source_potential(x, y, epsilon=epsilon, steps=steps)
    return u, softmin(y, x, u, epsilon=epsilon)


@pytest.fixture(autouse=True, scope="module")
def small_tables() -> Iterator[None]:
    """Tables of less than a row to a few rows: every function works in blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "TABLE_BYTES", 1_000)
        yield


def cost(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist")


def naive_potentials(x: Tensor, y: Tensor, epsilon: float, steps: int) -> tuple[Tensor, Tensor]:
    """The iterations of Cuturi 2013 in the log domain, on the whole table, in float64."""
    m_ij, v = cost(x, y), torch.zeros(len(y)).double()
    for _ in range(steps):
        u = -epsilon * (torch.logsumexp((v - m_ij) / epsilon, dim=1) + math.log(len(x)))
        v = -epsilon * (torch.logsumexp((u[:, None] - m_ij) / epsilon, dim=0) + math.log(len(y)))
    return u, v


def mass(x: Tensor, y: Tensor, u: Tensor, v: Tensor, epsilon: float) -> Tensor:
    return ((u[:, None] + v - cost(x, y)) / epsilon).exp()


@given(seed=seeds, n=sizes, m=sizes, epsilon=epsilons, steps=st.integers(1, 4))
def test_potentials_of_float64_are_those_of_the_whole_table(seed, n, m, epsilon, steps):
    x, y = normal(seed, n, 4).double(), normal(seed + 1, m, 4).double()
    u, v = sinkhorn(x, y, epsilon=epsilon, steps=steps)
    naive_u, naive_v = naive_potentials(x, y, epsilon, steps)
    torch.testing.assert_close(u, naive_u, atol=1e-9, rtol=0)
    torch.testing.assert_close(v, naive_v, atol=1e-9, rtol=0)


@given(seed=seeds, n=sizes, m=sizes, epsilon=epsilons)
def test_column_argmax_has_the_most_mass_of_its_column(seed, n, m, epsilon):
    x, y = normal(seed, n, 4), normal(seed + 1, m, 4)
    u, _ = naive_potentials(x, y, epsilon, 2)
    found = column_argmax(x, y, u, epsilon=epsilon)
    kept = u[:, None] - cost(x, y)
    # The largest mass, or one that float32 does not distinguish from it.
    torch.testing.assert_close(kept[found, torch.arange(m)], kept.amax(dim=0), atol=2e-5, rtol=0)


def test_of_rows_with_equal_mass_the_nearest_wins():
    # Both x have no other y near, so each sends it all its mass; the farther one comes first.
    x = torch.tensor([[1.3], [0.9], [-5.0]])
    y = torch.tensor([[1.0], [-4.0]])
    u, v = sinkhorn(x, y, epsilon=1e-4, steps=1)
    plan = mass(x, y, u, v, 1e-4)
    assert float(plan[0, 0]) == pytest.approx(float(plan[1, 0]), rel=0.05)
    assert column_argmax(x, y, u, epsilon=1e-4).tolist() == [1, 2]


def test_sets_of_one_row_and_of_equal_rows_have_a_plan():
    one, many = torch.ones(1, 3), torch.ones(5, 3)
    for x, y in ((one, one), (one, many), (many, one), (many, many)):
        u, v = sinkhorn(x, y, epsilon=1e-4, steps=2)
        assert bool(u.isfinite().all() and v.isfinite().all())
        assert torch.equal(
            column_argmax(x, y, u, epsilon=1e-4), torch.zeros(len(y), dtype=torch.int64)
        )
