"""Creating, extending and deleting anchor sets."""

from __future__ import annotations

import pytest
import torch

from app.anchors import service as anchor_sets
from app.db import resources, tables
from app.errors import Conflict
from tests.helpers import CONTEXT, ON_EACH_DATABASE, PROJECT, create_encoder


@ON_EACH_DATABASE
def test_embeddings_meant_for_a_deleted_set_never_reach_another_one_of_its_name(
    stocked_services, monkeypatch
):
    """A set of another size replaces the set while the embeddings are examined."""
    examine = anchor_sets.examine

    def examine_late(*arguments):
        monkeypatch.setattr(anchor_sets, "examine", examine)
        anchor_sets.delete_anchor_set(stocked_services, CONTEXT, "s")
        anchor_sets.create_anchor_set(
            stocked_services, CONTEXT, name="s", embeddings={"b": torch.randn(5, 2)}
        )
        return examine(*arguments)

    create_encoder(stocked_services, "c", 4)
    monkeypatch.setattr(anchor_sets, "examine", examine_late)
    with pytest.raises(Conflict):
        anchor_sets.add_embeddings(
            stocked_services, CONTEXT, anchor_set="s", encoder="c", vectors=torch.randn(12, 4)
        )
    with stocked_services.db.transaction() as session:
        row = resources.by_name(session, tables.AnchorSetRow, PROJECT, "s")
        assert (row.size, [space.encoder.name for space in row.spaces]) == (5, ["b"])
