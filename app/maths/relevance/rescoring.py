"""Scores of candidates, their cosines with a query, and the order of the scores."""

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
    unit = torch.nn.functional.normalize(queries.double(), dim=1, eps=1e-300).to(candidates.dtype)
    if len(counts) == 1:
        products = candidates @ unit[0]
    elif len(set(counts)) == 1:
        products = torch.bmm(
            candidates.reshape(len(counts), counts[0], -1), unit[:, :, None]
        ).flatten()
    else:
        parts = torch.split(candidates, list(counts))
        products = torch.cat([part @ query for part, query in zip(parts, unit, strict=True)])
    norms = torch.linalg.vector_norm(candidates, dim=1, dtype=torch.float64)
    scores: Tensor = (products.double() / norms).where(norms > 0, 0.0)
    return scores.clamp_(-1.0, 1.0)


def owners_of(counts: Sequence[int]) -> Int64[Tensor, " n"]:
    """The query of each candidate, from 0, in the order of `cosines`."""
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts, dtype=torch.int64))


def rank(
    scores: Float64[Tensor, " n"], counts: Sequence[int], limit: int | None = None
) -> list[Int64[Tensor, " m"]]:
    """Positions of each query's candidates, best score first; equal scores keep their order.

    limit  most positions of each query; None: all
    """
    return [
        part.sort(descending=True, stable=True).indices[:limit]
        for part in torch.split(scores, list(counts))
    ]
