"""Storing and loading heads."""

from __future__ import annotations

import torch

from app.heads import service as heads
from app.heads.linear import make_head
from tests.helpers import CONTEXT, some


def test_a_head_is_stored_in_float32_and_loaded_once(stocked_services):
    new = heads.HeadDefinition("h", "linear", "b", None, ["x", "y"])
    head = heads.create_head(
        stocked_services,
        CONTEXT,
        new,
        lambda dim: make_head({"weight": some(2, 2).double()}, dim=dim),
    )
    loaded = heads.load_head(stocked_services, head)
    weight = loaded.tensors()["weight"]
    assert weight.dtype == torch.float32
    assert torch.equal(weight, some(2, 2))
    assert heads.load_head(stocked_services, head) is loaded
