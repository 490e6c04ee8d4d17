"""Scores of candidates, their cosines or inner products with a query, and the order of the scores.

Fusion of the scores of two encoders: standardised per query, then weighted.

The scores of all queries are in one list, with the query of each, in any order: queries have
different numbers of candidates.
"""

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


def standardise(
    scores: Float64[Tensor, " n"], owners: Int64[Tensor, " n"]
) -> Float64[Tensor, " n"]:
    """Scores less the mean of their query, divided by its standard deviation.

    owners  (n,) the query of each score, from 0
    A query whose scores are all equal gets zeros.
    """
    counts = torch.bincount(owners)
    zeros = scores.new_zeros(len(counts))
    mean = zeros.index_add(0, owners, scores) / counts
    centred = scores - mean[owners]
    spread = (zeros.index_add(0, owners, centred.square()) / counts).sqrt()
    rounding = zeros.scatter_reduce(0, owners, scores.abs(), "amax") * 1e-12
    return (centred / spread[owners]).where((spread > rounding)[owners], 0.0)


def fuse(
    new: Float64[Tensor, " n"],
    old: Float64[Tensor, " n"],
    owners: Int64[Tensor, " n"],
    weights: Sequence[float],
) -> list[Float64[Tensor, " n"]]:
    """For each weight w, w z(new) + (1 - w) z(old), where z standardises the scores of a query.

    new      (n,) cosines of new queries and translated documents
    old      (n,) cosines of old queries and stored documents
    owners   (n,) the query of each score, from 0
    weights  each from 0 (the old ranking) to 1 (the new one)
    """
    first, second = standardise(new, owners), standardise(old, owners)
    return [weight * first + (1.0 - weight) * second for weight in weights]
