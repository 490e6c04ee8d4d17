"""Algorithm 1 of Cannistraci et al. 2023."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.maths.bootstrap.pools import Pools, fit_pools
from research.anchor_optimisation import PaperSettings, grow, mean_squares
from research.grown_pairs import GrownPairs
from tests.maths.bootstrap.clouds import normal, rotated


def partners(x: Tensor, y: Tensor, settings: PaperSettings) -> Tensor:
    """The largest entries of the whole entropic plan in float64; among entries equal in float32,
    the nearest.
    """
    cost = torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist")
    v, epsilon = torch.zeros(len(y)).double(), settings.epsilon
    for _ in range(settings.sinkhorn_steps):
        u = -epsilon * (torch.logsumexp((v - cost) / epsilon, dim=1) + math.log(len(x)))
        v = -epsilon * (torch.logsumexp((u[:, None] - cost) / epsilon, dim=0) + math.log(len(y)))
    mass = (u[:, None] + v - cost) / epsilon
    alike = 16 * 2**-23 * float(u.abs().max()) / epsilon
    return cost.masked_fill(mass < mass.amax(dim=0) - alike, torch.inf).argmin(dim=0)


def as_written(
    pools: Pools, rows: list[int], start: Tensor, frozen: Tensor, settings: PaperSettings
) -> Tensor:
    """The loop on whole tables, with gradients by autograd: the free target anchors after the last
    step.
    """
    free = start.clone().requires_grad_()
    adam = torch.optim.Adam([free], lr=settings.learning_rate)
    relative_x = pools.x @ pools.x[rows].T
    for _ in range(settings.steps):
        relative_y = pools.y @ torch.cat([frozen, free]).T
        partner = partners(relative_x, relative_y.detach(), settings)
        loss = (relative_x[partner] - relative_y).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        with torch.no_grad():
            free.copy_(torch.nn.functional.normalize(free))
    return free.detach()


@pytest.mark.parametrize(
    ("epsilon", "sinkhorn_steps"),
    [(1e-4, 1), (0.1, 3)],
)
def test_the_streamed_loop_is_the_dense_one(epsilon, sinkhorn_steps):
    pools = fit_pools(normal(1, 60, 8), normal(2, 50, 7))
    seeds = [(4, 7), (1, 30), (50, 2), (9, 9)]
    chosen = PaperSettings(12, steps=8, epsilon=epsilon, sinkhorn_steps=sinkhorn_steps, seed=3)
    # What is drawn, drawn again: source rows, then the unknown anchors.
    generator = torch.Generator().manual_seed(3)
    order = [i for i in torch.randperm(60, generator=generator).tolist() if i not in {4, 1, 50, 9}]
    rows = [4, 1, 50, 9, *order][:12]
    start = torch.nn.functional.normalize(torch.randn(8, 7, generator=generator))
    frozen = pools.y[[7, 30, 2, 9]]
    found = grow(pools, seeds, chosen)
    expected = as_written(pools, rows, start, frozen, chosen)
    torch.testing.assert_close(expected.norm(dim=1), torch.ones(len(expected)))
    nearest = (expected @ pools.y.T).argmax(dim=1).tolist()
    claims = dict(zip(rows[len(frozen) :], nearest, strict=True)) | dict(seeds)
    assert all(claims[i] == j for i, j in found.pairs.tolist())
    assert {j for _, j in found.pairs.tolist()} == set(claims.values())


def run(pools: Pools, seeds: list[tuple[int, int]], **chosen) -> GrownPairs:
    return grow(pools, seeds, PaperSettings(**chosen))


def test_finds_the_partners_across_a_rotation():
    pools, partner = rotated(100)
    found = run(pools, [(i, partner[i]) for i in range(20)], size=40)
    new = found.pairs.tolist()[20:]
    assert len(new) >= 15
    assert sum(partner[i] == j for i, j in new) >= 0.9 * len(new)
    assert found.facts["nearness"] > 0.9
    assert found.facts["agreement"] > 0.9
    assert bool(found.confidence.isnan().all())


@given(seed=st.integers(0, 2**31), count=st.integers(2, 6), size=st.integers(6, 12))
@settings(max_examples=10)
def test_no_item_is_taken_twice_on_a_side(seed, count, size):
    pools = Pools(*(torch.nn.functional.normalize(normal(seed + n, n, n - 8)) for n in (15, 12)))
    seeds = list(
        zip(torch.randperm(15)[:count].tolist(), torch.randperm(12)[:count].tolist(), strict=True)
    )
    found = run(pools, seeds, size=size, steps=5, seed=seed)
    pairs = [tuple(pair) for pair in found.pairs.tolist()]
    assert len(pairs) == len(found.confidence) <= size
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert all(0 <= i < 15 and 0 <= j < 12 for i, j in pairs)
    assert pairs[:count] == seeds


@given(
    seed=st.integers(0, 2**31),
    m=st.integers(1, 30),
    size=st.integers(1, 8),
    rows=st.integers(1, 40),
)
def test_the_gradient_is_autograds(seed, m, size, rows):
    y, anchors = normal(seed, m, 5), normal(seed + 1, size, 5).requires_grad_()
    partner = torch.randint(rows, (m,), generator=torch.Generator().manual_seed(seed))
    wanted = normal(seed + 2, rows, size)
    relative = y @ anchors.T
    expected = (relative - wanted[partner]).square().mean()
    expected.backward()
    loss, gradient = mean_squares(y, relative.detach(), wanted, partner)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(gradient, anchors.grad, atol=1e-5, rtol=1e-4)
