"""Refinement: from a first set of pairs to all that can be found, by graded maps and mutual best
matches.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap.neighbours import Beat, best_matches, hubness_offsets, mutual_pairs

#: Decode power of the graded map, and its ridge: LEAST_RIDGE, or the number of pairs over
#: PAIRS_A_RIDGE.
DECODE_POWER, LEAST_RIDGE, PAIRS_A_RIDGE = 0.5, 0.3, 300
#: Neighbours of the CSLS offsets.
CSLS_NEIGHBOURS = 10


def partner_pairs(partner: Int64[Tensor, " n"]) -> Int64[Tensor, "p 2"]:
    """(p, 2) rows (i, j) of those that have a partner j (n,), -1 where there is none; in the order
    of i.
    """
    rows = (partner >= 0).nonzero()[:, 0]
    return torch.stack([rows, partner[rows]], dim=1)


def graded_map(x: Float32[Tensor, "p rx"], y: Float32[Tensor, "p ry"]) -> Float64[Tensor, "rx ry"]:
    """T = (X^T X + l I)^-1 X^T Y (Y^T Y + l I)^-b of paired rows: the graded translator of powers
    (1, b), uncentred.

    Rows of pools are centred already; l and b as above.
    """
    x64, y64 = x.double(), y.double()
    ridge = max(LEAST_RIDGE, len(x) / PAIRS_A_RIDGE)
    gram = x64.T @ x64
    gram.diagonal().add_(ridge)
    left = torch.linalg.solve(gram, x64.T @ y64)
    values, vectors = torch.linalg.eigh(y64.T @ y64)
    scaled: Tensor = (left @ vectors) * (values.clamp_min(0) + ridge).pow(-DECODE_POWER)
    transform: Tensor = scaled @ vectors.T
    return transform


def mutual_partners(
    q: Float32[Tensor, "n ry"], y: Float32[Tensor, "m ry"], *, memory: int, beat: Beat
) -> Int64[Tensor, " n"]:
    """(n,) for each row of unit q its mutual best match by CSLS in the rows of unit y, or -1."""
    k = min(CSLS_NEIGHBOURS, len(q), len(y))
    offset_q, offset_y = hubness_offsets(q, y, k, memory=memory, beat=beat)
    pairs = mutual_pairs(
        best_matches(q, y, offset_q=offset_q, offset_y=offset_y, memory=memory, beat=beat)
    )
    partner = torch.full((len(q),), -1, dtype=torch.int64, device=q.device)
    partner[pairs.i] = pairs.j
    return partner


def learn_and_match(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    pairs: Int64[Tensor, "p 2"],
    *,
    memory: int,
    beat: Beat,
) -> Int64[Tensor, " n"]:
    """Learn the graded map from the pairs, and match all rows by it; y need not have unit rows."""
    transform = graded_map(x[pairs[:, 0]], y[pairs[:, 1]])
    return mutual_partners(normalize(x @ transform.float()), normalize(y), memory=memory, beat=beat)
