"""Which rows of a store may become its encoder's anchors."""

from __future__ import annotations

import torch

from app.services.anchors import anchor_sets
from app.services.anchors.store_anchors import _likeliest, _own_rows
from app.services.context import Services
from tests.services.helpers import CONTEXT, create_encoder, some
from tests.services.store_migrations.planning import OLD_DIM, encode, items

NAMES = [f"encoder{number}" for number in range(7)]


def test_rows_of_one_of_many_encoders_are_left_out(on_sqlite: Services) -> None:
    factors, rows = items(120, 5), items(200, 8)
    made = [create_encoder(on_sqlite, name, OLD_DIM) for name in NAMES]
    embeddings = {name: encode(factors, OLD_DIM, seed) for seed, name in enumerate(NAMES)}
    anchor_sets.create_anchor_set(on_sqlite, CONTEXT, name="pairs", embeddings=embeddings)
    vectors = torch.cat([encode(rows[:150], OLD_DIM, 0), encode(rows[150:], OLD_DIM, 5)])
    kept = _likeliest(embeddings, NAMES[0], vectors)
    assert next(iter(kept)) == NAMES[0]
    assert NAMES[5] in kept
    assert len(kept) == 4
    own = _own_rows(on_sqlite, made[0], vectors)
    assert own is not None
    assert own[:150].double().mean() > 0.95
    assert own[150:].double().mean() < 0.05


def test_no_row_is_judged_where_that_would_need_too_much_memory(on_sqlite: Services) -> None:
    made = [create_encoder(on_sqlite, name, 6_000) for name in NAMES[:2]]
    embeddings = {name: some(20, 6_000, seed) for seed, name in enumerate(NAMES[:2])}
    anchor_sets.create_anchor_set(on_sqlite, CONTEXT, name="large", embeddings=embeddings)
    assert _own_rows(on_sqlite, made[0], some(5, 6_000)) is None
