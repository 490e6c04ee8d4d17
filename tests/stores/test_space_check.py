"""The registered encoder that a store's vectors look most like."""

from __future__ import annotations

import torch

from app.anchors import service as anchor_sets
from app.stores.service import check_space
from tests.helpers import CONTEXT, create_encoder
from tests.maths.anchors.test_space_match import encode, items


def test_encoders_of_other_sets_are_compared_too(services) -> None:
    rows = {name: create_encoder(services, name, 32) for name in ("old", "new", "third")}
    create_encoder(services, "narrow", 16)
    wide, narrow = items(120, 1), items(90, 3)
    old, new, third = (encode(wide, 0), encode(wide, 1), encode(narrow, 2))
    anchor_sets.create_anchor_set(
        services, CONTEXT, name="both", embeddings={"old": old, "new": new}
    )
    anchor_sets.create_anchor_set(
        services,
        CONTEXT,
        name="other",
        embeddings={"third": third, "narrow": torch.randn(90, 16)},
    )
    for place, name in enumerate(rows):
        vectors = encode(items(60, 2), place).float().numpy()
        match = check_space(services, rows["old"], vectors)
        assert match.verdict == ("matches" if name == "old" else "another")
        assert match.likeliest == name
        assert {each.encoder for each in match.encoders} == set(rows)
