"""A migration of each busy store under torture, with `make test-long`.

`make torture` takes as long as you want.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.stores import KINDS, Stage
from tests.torture.tally import Tally

SEED = 31
SECONDS = 30.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def torture(kind: str, folder: Path, seconds: float) -> None:
    tally = Tally()
    with Stage([kind], folder, tally, seed=SEED, rows=400, workers=1, kills=0) as stage:
        stage.torture(kind, seconds)
    assert tally.faults == []


def test_nothing_that_clients_of_a_table_wrote_is_lost(tmp_path: Path) -> None:
    torture("pgvector", tmp_path, SECONDS)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "pgvector"])
def test_nothing_that_clients_of_a_collection_wrote_is_lost(kind: str, tmp_path: Path) -> None:
    torture(kind, tmp_path, 0)
