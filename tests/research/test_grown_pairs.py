"""The check of seeds."""

from __future__ import annotations

import pytest

from app.errors import InvalidSeeds
from research.grown_pairs import check_seeds


@pytest.mark.parametrize(
    ("seeds", "size", "field", "rows"),
    [
        ([], 5, "seeds", []),
        ([(0, 0)], 5, "seeds", []),
        ([(0, 0), (1, 1), (2, 2)], 2, "seeds", []),
        ([(0, 0), (1, 1)], 9, "size", []),
        ([(0, 0), (10, 1), (-1, 2), (1, 8)], 5, "seeds", [1, 2, 3]),
        ([(0, 0), (1, 1), (0, 2)], 5, "seeds", [2]),
        ([(0, 0), (1, 1), (2, 1)], 5, "seeds", [2]),
    ],
)
def test_invalid_seeds_are_refused_with_their_rows(seeds, size, field, rows):
    with pytest.raises(InvalidSeeds) as caught:
        check_seeds(seeds, source=10, target=8, size=size)
    assert caught.value.field == field
    assert caught.value.rows == rows
    check_seeds([(9, 0), (0, 7)], source=10, target=8, size=8)  # these fit
