"""Fusion of the scores of two encoders: standardised per query, then weighted.

The scores of all queries are in one list, with the query of each, in any order: queries have
different numbers of candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor


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
