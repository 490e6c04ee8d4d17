"""Cosines or inner products of many queries with their candidates, all in one list."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor


def cosines(
    queries: Float[Tensor, "q d"], candidates: Float[Tensor, "n d"], counts: Sequence[int]
) -> Float64[Tensor, " n"]:
    """Cosine of each candidate with its own query, from -1 to 1; 0 where one of them is zero.

    queries     (q, d)
    candidates  (n, d): first those of query 0, then those of query 1, and so on
    counts      number of candidates of each query; their sum is n
    """
    unit = torch.nn.functional.normalize(queries.double(), dim=1, eps=1e-300)
    norms = torch.linalg.vector_norm(candidates, dim=1, dtype=torch.float64)
    scores: Tensor = (products(unit, candidates, counts) / norms).where(norms > 0, 0.0)
    return scores.clamp_(-1.0, 1.0)


def products(
    queries: Float[Tensor, "q d"], candidates: Float[Tensor, "n d"], counts: Sequence[int]
) -> Float64[Tensor, " n"]:
    """Inner product of each candidate with its own query. The arguments are those of `cosines`."""
    rows, parts = queries.to(candidates.dtype), torch.split(candidates, list(counts))
    return torch.cat([part @ row for part, row in zip(parts, rows, strict=True)]).double()


def owners_of(counts: Sequence[int]) -> Int64[Tensor, " n"]:
    """The query of each candidate, from 0, in the order of `cosines`."""
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts, dtype=torch.int64))
