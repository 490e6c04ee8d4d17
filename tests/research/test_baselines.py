"""The baselines: a rotation from the seeds alone, and self-learning as in vecmap."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from app.errors import InvalidSeeds
from app.maths.bootstrap.pools import Pools, fit_pools
from research.baselines import Vecmap, match_drawn, procrustes, vecmap
from research.grown_pairs import GrownPairs

Seeds = list[tuple[int, int]]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def noisy(count: int, noise: float) -> tuple[Pools, list[int]]:
    """Clustered items, and a noisy rotation in another order: item i is row partner[i] there."""
    source = normal(5, 20, 16)[torch.arange(count) % 20] + normal(4, count, 16)
    rotation, _ = torch.linalg.qr(normal(6, 16, 16))
    partner = torch.randperm(count, generator=torch.Generator().manual_seed(7))
    target = torch.empty(count, 16)
    target[partner] = source @ rotation + noise * normal(8, count, 16)
    return fit_pools(source, target), partner.tolist()


def right(found: GrownPairs, partner: list[int], seeds: int) -> float:
    """The share of the pairs beside the seeds that is right."""
    new = found.pairs.tolist()[seeds:]
    return sum(partner[i] == j for i, j in new) / max(1, len(new))


def naive_csls(q: Tensor, y: Tensor, k: int) -> list[list[float]]:
    """CSLS entry by entry, in float64."""
    cosines = [[float(a @ b) for b in y.double()] for a in q.double()]
    near_q = [sum(sorted(row)[-k:]) / k for row in cosines]
    near_y = [sum(sorted(column)[-k:]) / k for column in zip(*cosines, strict=True)]
    return [
        [2 * cosine - near_q[i] - near_y[j] for j, cosine in enumerate(row)]
        for i, row in enumerate(cosines)
    ]


def polar(pools: Pools, seeds: Seeds) -> Tensor:
    """The nearest orthogonal map of as many seeds as there are dimensions, or more."""
    x, y = (
        pool[[pair[side] for pair in seeds]].double()
        for side, pool in enumerate((pools.x, pools.y))
    )
    left, _, right_ = torch.linalg.svd(x.T @ y)
    return left @ right_


def test_procrustes_finds_everybody_across_a_rotation_from_as_many_seeds_as_dimensions():
    pools, partner = noisy(200, 0.0)
    found = procrustes(pools, list(enumerate(partner))[:16])
    assert len(found.pairs) == 200
    assert right(found, partner, 16) == 1.0


def test_procrustes_takes_the_pairs_that_choose_each_other_by_a_naive_csls_the_best_first():
    pools, partner = noisy(60, 0.8)
    seeds = list(enumerate(partner))[:20]
    scores = naive_csls(normalize(pools.x.double() @ polar(pools, seeds)), pools.y, 10)
    y_of_x = [row.index(max(row)) for row in scores]
    x_of_y = [column.index(max(column)) for column in map(list, zip(*scores, strict=True))]
    taken = {j for _, j in seeds}
    chosen = [(i, j) for i, j in enumerate(y_of_x) if x_of_y[j] == i and i >= 20 and j not in taken]
    wanted = sorted(chosen, key=lambda pair: -scores[pair[0]][pair[1]])
    assert 5 < len(wanted) < 40
    assert procrustes(pools, seeds).pairs.tolist() == [list(pair) for pair in [*seeds, *wanted]]


def test_a_round_that_looks_at_everything_takes_everybodys_best_partner_from_both_sides():
    pools, partner = noisy(60, 0.8)
    seeds = list(enumerate(partner))[:20]
    scores = naive_csls(normalize(pools.x.double() @ polar(pools, seeds)), pools.y, 10)
    forth = [[i, row.index(max(row))] for i, row in enumerate(scores)]
    back = [
        [column.index(max(column)), j]
        for j, column in enumerate(map(list, zip(*scores, strict=True)))
    ]
    translated = normalize(pools.x @ polar(pools, seeds).float())
    found, _ = match_drawn(pools, translated, 1.0, torch.Generator())
    assert found.tolist() == [*forth, *back]


def test_a_round_that_looks_at_a_share_sees_about_that_share_of_the_best_partners():
    pools, partner = noisy(400, 0.0)
    translated = normalize(pools.x @ polar(pools, list(enumerate(partner))[:16]).float())
    found, _ = match_drawn(pools, translated, 0.25, torch.Generator().manual_seed(0))
    dictionary = found.tolist()
    # The method treats both sides alike, so a true pair is found from both or from neither.
    forth, back = (
        {(i, j) for i, j in half if partner[i] == j}
        for half in (dictionary[:400], dictionary[400:])
    )
    assert forth == back
    assert 0.15 < len(forth) / 400 < 0.35


def test_vecmap_finds_from_few_seeds_what_their_rotation_alone_does_not():
    pools, partner = noisy(600, 0.4)
    seeds = list(enumerate(partner))[:6]
    alone, found = procrustes(pools, seeds), vecmap(pools, seeds, Vecmap())
    assert len(alone.pairs) < 250
    assert right(alone, partner, 6) < 0.8
    assert len(found.pairs) > 400
    assert right(found, partner, 6) > 0.95


def test_vecmap_makes_as_many_rounds_as_it_is_allowed():
    pools, partner = noisy(100, 0.5)
    assert vecmap(pools, list(enumerate(partner))[:16], Vecmap(most=4)).facts["rounds"] == 4


GROW: list[Callable[[Pools, Seeds], GrownPairs]] = [
    lambda pools, seeds: procrustes(pools, seeds),
    lambda pools, seeds: vecmap(pools, seeds, Vecmap(patience=1)),
]


@pytest.mark.parametrize("grow", GROW, ids=["procrustes", "vecmap"])
@given(seed=st.integers(0, 2**31), count=st.integers(2, 6))
def test_seeds_come_first_whatever_is_found_and_no_item_is_taken_twice_on_a_side(grow, seed, count):
    pools = fit_pools(normal(seed, 15, 4), normal(seed + 1, 12, 5))
    seeds = list(
        zip(torch.randperm(15)[:count].tolist(), torch.randperm(12)[:count].tolist(), strict=True)
    )
    found = grow(pools, seeds)
    pairs = [tuple(pair) for pair in found.pairs.tolist()]
    assert pairs[:count] == seeds
    assert (
        len({i for i, _ in pairs})
        == len({j for _, j in pairs})
        == len(pairs)
        == len(found.confidence)
    )
    assert all(0 <= i < 15 and 0 <= j < 12 for i, j in pairs)
    assert bool(found.confidence.isnan().all())


@pytest.mark.parametrize("grow", GROW, ids=["procrustes", "vecmap"])
@pytest.mark.parametrize(
    "seeds", [[], [(0, 0)], [(0, 0), (1, 12)], [(0, 0), (0, 1)], [(0, 1), (1, 1)]]
)
def test_too_few_seeds_or_wrong_ones_are_refused(grow, seeds):
    with pytest.raises(InvalidSeeds):
        grow(fit_pools(normal(1, 15, 4), normal(2, 12, 5)), seeds)


@pytest.mark.parametrize("grow", GROW, ids=["procrustes", "vecmap"])
def test_more_dimensions_than_items_are_no_matter(grow):
    pools, partner = noisy(40, 0.5)
    wide, _ = torch.linalg.qr(normal(9, 100, 16))
    more = Pools(pools.x @ wide.T, pools.y @ wide.T)
    seeds = list(enumerate(partner))[:20]
    assert grow(more, seeds).pairs.tolist() == grow(pools, seeds).pairs.tolist()


@pytest.mark.parametrize("grow", GROW, ids=["procrustes", "vecmap"])
def test_two_seeds_among_three_items_are_enough(grow):
    found = grow(fit_pools(normal(1, 3, 4), normal(2, 3, 2)), [(0, 1), (2, 0)])
    assert found.pairs.tolist()[:2] == [[0, 1], [2, 0]]
