"""Which encoder made each row of a store."""

from __future__ import annotations

import torch

from app.maths.anchors.row_owners import UNDECIDED, fit_row_owners
from tests.maths.clouds import normal, rotation

DIM, ANCHORS, ROWS = 16, 100, 2_000


def view(seed: int, count: int, at: float, turn: int = 1) -> torch.Tensor:
    """Rows of an encoder: an anisotropic cloud beside the origin."""
    spread = torch.linspace(2.0, 0.2, DIM, dtype=torch.float64)
    return normal(seed, count, DIM).double() * spread @ rotation(turn, DIM).double() + at


def test_rows_go_to_their_own_encoder_and_the_bound_of_the_errors_holds() -> None:
    owners, errors = fit_row_owners([view(1, ANCHORS, 0.5), view(2, ANCHORS, -0.5, turn=2)])
    for place, rows in enumerate((view(3, ROWS, 0.5), view(4, ROWS, -0.5, turn=2))):
        found = owners.find(rows)
        assert float((found == 1 - place).double().mean()) <= 2 * errors[place].wrong_at_most
        assert abs(float((found == place).double().mean()) - errors[place].right) < 0.1
    assert errors[0].wrong_at_most == 1 / (ANCHORS + 1)


def test_rows_of_no_encoder_and_without_direction_are_undecided() -> None:
    owners, _ = fit_row_owners([view(1, ANCHORS, 2.0), view(2, ANCHORS, -2.0, turn=2)])
    strange = view(5, ROWS, 2.0)[:, torch.arange(DIM).flip(0)] * torch.tensor([1.0, -1.0] * 8)
    assert float((owners.find(strange) == UNDECIDED).double().mean()) > 0.95
    nothing = torch.zeros(3, DIM)
    nothing[1] = torch.nan
    nothing[2] = torch.inf
    assert owners.find(nothing).tolist() == [UNDECIDED] * 3


def test_lengths_do_not_matter_and_one_encoder_is_enough() -> None:
    owners, errors = fit_row_owners([view(1, ANCHORS, 2.0)])
    rows = view(6, 50, 2.0)
    assert torch.equal(owners.find(rows), owners.find(rows * 1e20))
    assert float((owners.find(rows) == 0).double().mean()) > 0.9
    assert errors[0].wrong_at_most == 0.0


def test_two_names_of_one_encoder_cannot_be_told_apart() -> None:
    owners, errors = fit_row_owners([view(1, ANCHORS, 2.0), view(2, ANCHORS, 2.0)])
    found = owners.find(view(6, ROWS, 2.0))
    assert float((found == UNDECIDED).double().mean()) > 0.5
    assert max(each.right for each in errors) < 0.5
