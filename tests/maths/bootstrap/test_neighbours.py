"""Who is nearest to whom, streamed, against the whole table in float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.bootstrap import neighbours
from app.maths.bootstrap.neighbours import (
    best_matches,
    hubness_offsets,
    nearest_rows,
)
from tests.maths.bootstrap.clouds import interrupt, unit

sizes = st.integers(1, 40)
seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True, scope="module")
def small_tables() -> Iterator[None]:
    """Tables of less than a row to a few rows: every function works in blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "TABLE_BYTES", 1_000)
        yield


def corners(seed: int, n: int) -> Tensor:
    """Rows of an identity matrix, many of them equal: all cosines are exactly 0 or 1."""
    return torch.eye(4)[torch.randint(4, (n,), generator=torch.Generator().manual_seed(seed))]


def everything(q: Tensor, y: Tensor, offset_q: Tensor, offset_y: Tensor) -> Tensor:
    return 2 * q.double() @ y.double().T - offset_q.double()[:, None] - offset_y.double()


@given(seed=seeds, n=sizes, m=sizes, data=st.data())
def test_hubness_is_the_mean_of_the_largest_cosines_of_rows_and_of_columns(seed, n, m, data):
    k = data.draw(st.integers(1, min(n, m)))
    q, y = unit(seed, n, 5), unit(seed + 1, m, 5)
    table = q.double() @ y.double().T
    there, back = hubness_offsets(q, y, k)
    torch.testing.assert_close(
        there.double(), table.topk(k, dim=1).values.mean(dim=1), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        back.double(), table.topk(k, dim=0).values.mean(dim=0), atol=1e-6, rtol=0
    )


@given(seed=seeds, n=sizes, m=sizes, data=st.data())
def test_nearest_names_rows_that_have_the_largest_cosines(seed, n, m, data):
    k = data.draw(st.integers(1, m))
    q, y = unit(seed, n, 5), unit(seed + 1, m, 5)
    table = q.double() @ y.double().T
    values, rows = nearest_rows(q, y, k)
    torch.testing.assert_close(values.double(), table.topk(k, dim=1).values, atol=1e-6, rtol=0)
    torch.testing.assert_close(values.double(), table.gather(1, rows), atol=1e-6, rtol=0)
    assert all(len(set(row)) == k for row in rows.tolist())


@given(seed=seeds, n=sizes, m=sizes)
def test_best_has_the_largest_scores_of_rows_and_columns(seed, n, m):
    q, y = unit(seed, n, 5), unit(seed + 1, m, 5)
    offset_q, offset_y = (
        torch.rand(n, generator=torch.Generator().manual_seed(seed)),
        torch.linspace(-1, 1, m),
    )
    table = everything(q, y, offset_q, offset_y)
    found = best_matches(q, y, offset_q=offset_q, offset_y=offset_y)
    largest = table.amax(dim=1)
    near = {"atol": 1e-5, "rtol": 0.0}
    torch.testing.assert_close(found.score_q.double(), largest, **near)
    torch.testing.assert_close(found.score_y.double(), table.amax(dim=0), **near)
    # The returned row has that score, so it is the best, or one that float32 does not distinguish
    # from it.
    torch.testing.assert_close(table[torch.arange(n), found.y_of_q], largest, **near)
    torch.testing.assert_close(table[found.q_of_y, torch.arange(m)], table.amax(dim=0), **near)


@given(seed=seeds, n=sizes, m=sizes)
def test_of_equal_scores_the_lowest_row_wins_on_both_sides(seed, n, m):
    q, y = corners(seed, n), corners(seed + 1, m)
    table = (2 * q @ y.T).tolist()
    found = best_matches(q, y, offset_q=torch.zeros(n), offset_y=torch.zeros(m))
    assert found.y_of_q.tolist() == [row.index(max(row)) for row in table]
    assert found.q_of_y.tolist() == [
        column.index(max(column)) for column in map(list, zip(*table, strict=True))
    ]


def test_what_a_beat_raises_ends_the_work():
    q, y = unit(8, 100, 4), unit(9, 50, 4)
    with pytest.raises(KeyboardInterrupt):
        nearest_rows(q, y, 3, beat=interrupt)
    with pytest.raises(KeyboardInterrupt):
        hubness_offsets(q, y, 3, beat=interrupt)
    with pytest.raises(KeyboardInterrupt):
        best_matches(q, y, offset_q=torch.zeros(100), offset_y=torch.zeros(50), beat=interrupt)
