"""A warm pair is rescored without IO, and only its candidates are translated."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from app.services.context import Services
from app.services.relevance import rescoring
from app.services.relevance.rescoring import Rescoring
from app.services.serving.apply import Translation
from app.services.translators.translators import FitRequest
from app.storage import name_cache
from tests.services.helpers import CONTEXT

FIT = FitRequest("a", "b", "s", "graded", {})


def test_a_warm_pair_needs_no_database(stocked: Services) -> None:
    stored = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    request = Rescoring(Translation(FIT), torch.eye(2), None, [stored[:9], stored[9:]])
    context = CONTEXT
    cold = asyncio.run(rescoring.rescore(stocked, context, request))
    away = replace(stocked, db=None, blobs=None)
    warm = asyncio.run(rescoring.rescore(away, context, request))
    assert len(warm.translated.vectors) == 12
    for one, other in zip(cold.results, warm.results, strict=True):
        assert torch.equal(one.places, other.places)
        assert torch.equal(one.scores, other.scores)


def test_memory_is_reserved_for_the_translated_candidates(stocked: Services) -> None:
    reserved: list[int] = []
    context = replace(CONTEXT, reserve_bytes=reserved.append)
    request = Rescoring(Translation(FIT), torch.eye(2)[:1], None, [torch.eye(3)])
    asyncio.run(rescoring.rescore(stocked, context, request))
    assert reserved == [3 * (2 * 4 + rescoring.CANDIDATE_BYTES)]


class Watched(list[Tensor]):
    """Candidates that note the thread of each pass over them."""

    def __init__(self, blocks: list[Tensor]) -> None:
        super().__init__(blocks)
        self.threads: list[int] = []

    def __iter__(self) -> Iterator[Tensor]:
        self.threads.append(threading.get_ident())
        return super().__iter__()


@pytest.mark.parametrize("count", [64, 65])
def test_only_few_queries_are_scored_on_the_event_loop(
    stocked: Services, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_cache, "MEMORY_S", 60.0)  # a busy machine takes longer
    vectors = torch.randn(count, 3, generator=torch.Generator().manual_seed(1))
    blocks = Watched([vectors[:1], vectors[:2]] + [vectors[row:][:1] for row in range(2, count)])
    request = Rescoring(Translation(FIT), vectors[:, :2], None, blocks, "fuse", vectors, weight=0.5)
    asyncio.run(rescoring.rescore(stocked, CONTEXT, request))
    blocks.threads.clear()
    asyncio.run(rescoring.rescore(stocked, CONTEXT, request))
    counting, *joining_and_scoring = (each == threading.get_ident() for each in blocks.threads)
    assert counting
    assert len(joining_and_scoring) >= 3
    assert set(joining_and_scoring) == {count == 64}
