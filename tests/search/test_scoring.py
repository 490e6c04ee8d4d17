"""The order of candidates while a migration embeds the rows of their store."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import torch

from app.context import Services
from app.search.queries import StoreRowId
from app.search.scoring import NativeScoring, Scoring, score_candidates
from tests.helpers import CONTEXT, create_encoder


async def without_texts(
    places: Sequence[int],
) -> tuple[Sequence[str | None], Sequence[StoreRowId]]:
    return [None for _ in places], [StoreRowId("store", bytes([place])) for place in places]


def test_a_row_precedes_no_other_only_because_it_has_its_new_vector(on_sqlite: Services) -> None:
    """The first and the last of four candidates have one; their scores predict those between."""
    encoders = create_encoder(on_sqlite, "old", 2), create_encoder(on_sqlite, "new", 2)
    cosines = torch.tensor([0.9, 0.8, 0.7, 0.1])
    vectors = torch.stack([cosines, (1 - cosines.square()).sqrt()], dim=1)
    query = torch.tensor([[1.0, 0.0]])
    native = NativeScoring(1, without_texts, 5_000)
    scoring = Scoring(encoders, None, query, query, 0.5, None, native, embedded=True)
    known = torch.tensor([0, 3]), vectors[[0, 3]]
    found = anyio.run(score_candidates, on_sqlite, CONTEXT, scoring, vectors, [4], known)
    assert found.results[0].places.tolist() == [0, 1, 2, 3]
    assert found.results[0].is_native.tolist() == [True, False, False, True]
