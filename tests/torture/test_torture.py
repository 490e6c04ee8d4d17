"""A migration of each busy store under torture, with `make test-long`.

`make torture` takes as long as you want.
"""

from __future__ import annotations

import pytest

from tests.torture.stage import KINDS, torture_kind
from tests.torture.tally import Tally

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_clients_wrote_is_lost(kind: str) -> None:
    tally = Tally()
    seconds = 30.0 if kind == "pgvector" else 0
    torture_kind(kind, tally, seed=31, seconds=seconds, rows=400, workers=1, kills=0)
    assert tally.faults == []
