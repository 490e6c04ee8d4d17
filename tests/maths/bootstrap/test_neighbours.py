"""Nearest rows and graded maps, streamed, against the whole table in float64."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap import neighbours
from app.maths.bootstrap.neighbours import (
    CSLS_NEIGHBOURS,
    DECODE_POWER,
    LEAST_RIDGE,
    PAIRS_A_RIDGE,
    graded_map,
    mutual_partners,
    no_beat,
)
from tests.maths.bootstrap.clouds import constants, normal

sizes = st.integers(1, 40)
seeds = st.integers(0, 2**31)
# tables of less than a row to a few rows: every function works in blocks
small_tables = constants(neighbours, TABLE_BYTES=1_000)


def by_formula(x: Tensor, y: Tensor) -> Tensor:
    """With an inverse, and a power by eigenvalues, in float64."""
    x, y = x.double(), y.double()
    ridge = max(LEAST_RIDGE, len(x) / PAIRS_A_RIDGE)
    values, vectors = torch.linalg.eigh(y.T @ y + ridge * torch.eye(y.shape[1]).double())
    inverse = torch.linalg.inv(x.T @ x + ridge * torch.eye(x.shape[1]).double())
    return inverse @ x.T @ y @ vectors @ torch.diag(values**-DECODE_POWER) @ vectors.T


@given(
    seed=seeds,
    pairs=st.sampled_from([0, 1, 7, 60, 400]),
    dx=st.integers(1, 8),
    dy=st.integers(1, 8),
)
def test_the_map_is_its_formula(seed, pairs, dx, dy):
    x, y = normal(seed, pairs, dx), normal(seed + 1, pairs, dy)
    torch.testing.assert_close(graded_map(x, y), by_formula(x, y), rtol=1e-6, atol=1e-9)


@given(seed=seeds, n=st.integers(1, 30), m=st.integers(1, 30))
def test_partners_are_the_largest_of_their_row_and_of_their_column(seed, n, m):
    q, y = normalize(normal(seed, n, 4)), normalize(normal(seed + 1, m, 4))
    table, k = q.double() @ y.double().T, min(CSLS_NEIGHBOURS, n, m)
    scores = (
        2 * table
        - table.topk(k, dim=1).values.mean(dim=1)[:, None]
        - table.topk(k, dim=0).values.mean(dim=0)
    )
    found = mutual_partners(q, y, beat=no_beat)
    expected = [
        int(scores[i].argmax()) if int(scores[:, int(scores[i].argmax())].argmax()) == i else -1
        for i in range(n)
    ]
    assert found.tolist() == expected
