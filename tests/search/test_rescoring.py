"""A warm pair is rescored without IO, and only its candidates are translated."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from app.context import Services
from app.db import name_cache
from app.search import rescoring
from app.search.rescoring import Rescoring
from app.translate.fit import FitRequest
from app.translate.service import Translation
from tests.helpers import CONTEXT

FIT = FitRequest("a", "b", "s", "graded", {})


def test_a_warm_pair_needs_no_database(
    stocked_services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_cache, "MEMORY_S", 60.0)  # a busy machine takes longer
    stored = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    request = Rescoring(Translation(FIT), torch.eye(2), None, [stored[:9], stored[9:]])
    context = CONTEXT
    cold = asyncio.run(rescoring.rescore(stocked_services, context, request))
    away = replace(stocked_services, db=None, blobs=None)
    warm = asyncio.run(rescoring.rescore(away, context, request))
    assert len(warm.translated.vectors) == 12
    for one, other in zip(cold.results, warm.results, strict=True):
        assert torch.equal(one.places, other.places)
        assert torch.equal(one.scores, other.scores)


def test_memory_is_reserved_for_the_translated_candidates(stocked_services: Services) -> None:
    reserved: list[int] = []
    context = replace(CONTEXT, reserve_bytes=reserved.append)
    request = Rescoring(Translation(FIT), torch.eye(2)[:1], None, [torch.eye(3)])
    asyncio.run(rescoring.rescore(stocked_services, context, request))
    assert reserved == [3 * (2 * 4 + rescoring.CANDIDATE_BYTES)]
