"""A warm pair is rescored without IO, and only its candidates are translated."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch

from app.context import Services
from app.db import cache
from app.search import scoring
from app.search.rescoring import rescore
from app.search.schemas import RescoreRequest
from tests.helpers import CONTEXT


def request(*blocks: torch.Tensor) -> RescoreRequest:
    candidates: list[dict[str, Any]] = [
        {"ids": list(range(len(block))), "vectors": block.tolist()} for block in blocks
    ]
    pair = {"source": "a", "target": "b", "anchor_set": "s", "method": "graded"}
    queries = torch.eye(2)[: len(blocks)].tolist()
    return RescoreRequest.model_validate({**pair, "queries": queries, "candidates": candidates})


def test_a_warm_pair_needs_no_database(
    stocked_services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MEMORY_S", 60.0)  # a busy machine takes longer
    stored = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    asked = request(stored[:9], stored[9:])
    cold = asyncio.run(rescore(stocked_services, CONTEXT, asked))
    away = replace(stocked_services, db=None, blobs=None)
    warm = asyncio.run(rescore(away, CONTEXT, asked))
    assert [len(each["ids"]) for each in warm["results"]] == [9, 3]
    for one, other in zip(cold["results"], warm["results"], strict=True):
        assert one["ids"] == other["ids"]
        assert one["scores"].tolist() == other["scores"].tolist()


def test_memory_is_reserved_for_the_translated_candidates(stocked_services: Services) -> None:
    reserved: list[int] = []
    context = replace(CONTEXT, reserve_bytes=reserved.append)
    asyncio.run(rescore(stocked_services, context, request(torch.eye(3))))
    assert reserved == [3 * (2 * 4 + scoring.CANDIDATE_BYTES)]
