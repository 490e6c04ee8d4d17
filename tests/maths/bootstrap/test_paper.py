"""Algorithm 1 of Cannistraci et al. 2023."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from app.maths.bootstrap.paper import PaperSettings, grow
from app.maths.bootstrap.pools import Pools, Step, fit_pools
from tests.maths.bootstrap.clouds import normal, rotated, states


def partners(x: Tensor, y: Tensor, settings: PaperSettings) -> Tensor:
    """The largest entries of the whole entropic plan in float64; among entries equal in float32,
    the nearest.
    """
    cost = torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist")
    v, epsilon = torch.zeros(len(y)).double(), settings.epsilon
    for _ in range(settings.sinkhorn_steps):
        u = -epsilon * (torch.logsumexp((v - cost) / epsilon, dim=1) + math.log(len(x)))
        v = -epsilon * (torch.logsumexp((u[:, None] - cost) / epsilon, dim=0) + math.log(len(y)))
    along, other = (0, u) if settings.argmax == "columns" else (1, v)
    mass, alike = (
        (u[:, None] + v - cost) / epsilon,
        16 * 2**-23 * float(other.abs().max()) / epsilon,
    )
    return cost.masked_fill(mass < mass.amax(dim=along, keepdim=True) - alike, torch.inf).argmin(
        dim=along
    )


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
        if settings.argmax == "columns":
            loss = (relative_x[partner] - relative_y).square().mean()
        else:
            loss = (relative_x - relative_y[partner]).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        with torch.no_grad():
            free.copy_(torch.nn.functional.normalize(free))
    return free.detach()


@pytest.mark.parametrize("freeze_seeds", [True, False])
@pytest.mark.parametrize("argmax", ["columns", "rows"])
@pytest.mark.parametrize(("epsilon", "sinkhorn_steps"), [(1e-4, 1), (1e-2, 1), (0.1, 3)])
def test_the_streamed_loop_is_the_dense_one(epsilon, sinkhorn_steps, argmax, freeze_seeds):
    pools = fit_pools(normal(1, 60, 8), normal(2, 50, 7))
    seeds = [(4, 7), (1, 30), (50, 2), (9, 9)]
    chosen = PaperSettings(
        12,
        steps=8,
        epsilon=epsilon,
        sinkhorn_steps=sinkhorn_steps,
        argmax=argmax,
        freeze_seeds=freeze_seeds,
        seed=3,
    )
    # What is drawn, drawn again: source rows, then the unknown anchors.
    generator = torch.Generator().manual_seed(3)
    order = [i for i in torch.randperm(60, generator=generator).tolist() if i not in {4, 1, 50, 9}]
    rows = [4, 1, 50, 9, *order][:12]
    drawn = torch.nn.functional.normalize(torch.randn(8, 7, generator=generator))
    known = pools.y[[7, 30, 2, 9]]
    start, frozen = (drawn, known) if freeze_seeds else (torch.cat([known, drawn]), known[:0])
    steps: list[Step] = []
    found = grow(pools, seeds, chosen, on_step=steps.append)
    expected = as_written(pools, rows, start, frozen, chosen)
    torch.testing.assert_close(states(steps)[-1]["free"], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(expected.norm(dim=1), torch.ones(len(expected)))
    nearest = (expected @ pools.y.T).argmax(dim=1).tolist()
    claims = dict(zip(rows[len(frozen) :], nearest, strict=True)) | (
        dict(seeds) if freeze_seeds else {}
    )
    assert all(claims[i] == j for i, j in found.pairs.tolist())
    assert {j for _, j in found.pairs.tolist()} == set(claims.values())


def test_seeds_that_are_not_frozen_move_and_frozen_ones_do_not():
    pools, partner = rotated(150)
    seeds, steps = [(i, partner[i]) for i in range(20)], []
    grow(pools, seeds, PaperSettings(size=40, steps=3, freeze_seeds=False), on_step=steps.append)
    free = states(steps)[-1]["free"]
    assert len(free) == 40
    assert not torch.allclose(free[:20], pools.y[[j for _, j in seeds]], atol=1e-3)
    grow(pools, seeds, PaperSettings(size=40, steps=3), on_step=steps.append)
    assert len(states(steps)[-1]["free"]) == 20


def test_a_wrong_seed_that_is_not_frozen_is_left_and_a_frozen_one_is_kept():
    pools, partner = rotated(150)
    wrong = (30, partner[31])
    seeds = [(i, partner[i]) for i in range(30)] + [wrong]
    free = grow(pools, seeds, PaperSettings(size=60, freeze_seeds=False)).pairs.tolist()
    assert list(wrong) not in free
    assert [30, partner[30]] in free
    assert list(wrong) in grow(pools, seeds, PaperSettings(size=60)).pairs.tolist()


def test_seeds_that_already_fill_the_size_come_back_as_they_are():
    found = grow(
        fit_pools(normal(8, 10, 4), normal(9, 10, 4)), [(3, 1), (0, 9)], PaperSettings(size=2)
    )
    assert found.pairs.tolist() == [[3, 1], [0, 9]]
    assert found.facts == {}
