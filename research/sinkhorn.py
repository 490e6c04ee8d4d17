"""The entropic plan between two sets of vectors, computed in blocks and never stored.

For rows x (n, k) and y (m, k) with uniform weights and the cost M_ij = |x_i - y_j|, the plan with
entropy epsilon is P_ij = exp((u_i + v_j - M_ij) / epsilon), with sums 1/n over rows and 1/m over
columns. The functions compute a few rows of M at a time: TABLE_BYTES at most (but at least one
row).

Precision: in the log domain, because M / epsilon reaches 1e5 where epsilon is the paper's 1e-4.
Potentials are float64; M has the precision of x and y, which are centred together first, because |x
- y|^2 = |x|^2 + |y|^2 - 2 x.y loses their common part. In float32 that leaves M an error of some
1e-7 (|x|^2 + |y|^2) / M: with epsilon 1e-4, about one percent of an entry of P.
Sources: Cuturi 2013; Peyré and Cuturi 2019, "Computational Optimal Transport", section 4.4 (log
domain).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.maths.bootstrap.annealing import CACHED_NUMBERS, NEGLIGIBLE_LOGIT
from app.maths.bootstrap.neighbours import no_beat, product_blocks

#: Two equal masses may differ by this many roundings of a potential over epsilon.
EQUAL_MASS_ROUNDINGS = 16


def source_potential(
    x: Float[Tensor, "n k"],
    y: Float[Tensor, "m k"],
    *,
    epsilon: float,
    steps: int,
) -> Float64[Tensor, " n"]:
    """The potential u (n,), in the cost's unit, after `steps` >= 1 iterations: u from v, which
    starts at 0, then v from u. The last v is not computed: it is constant down a column.
    """
    v = torch.zeros(len(y), dtype=torch.float64, device=y.device)
    u = softmin(x, y, v, epsilon=epsilon)
    for _ in range(steps - 1):
        v = softmin(y, x, u, epsilon=epsilon)
        u = softmin(x, y, v, epsilon=epsilon)
    return u


def softmin(
    rows: Float[Tensor, "n k"],
    others: Float[Tensor, "m k"],
    potential: Float64[Tensor, " m"],
    *,
    epsilon: float,
) -> Float64[Tensor, " n"]:
    """-epsilon (log n + log sum_j exp((potential_j - M_ij) / epsilon)) (n,): the potential that
    gives every row mass 1/n.
    """
    potentials = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
    for piece, block in logit_blocks(rows, others, potential, epsilon=epsilon):
        largest, sums = _exponentials(block)
        potentials[piece] = largest.double() + sums.double().log_()
    return potentials.add_(math.log(len(rows))).mul_(-epsilon)


def column_argmax(
    x: Float[Tensor, "n k"],
    y: Float[Tensor, "m k"],
    u: Float64[Tensor, " n"],
    *,
    epsilon: float,
) -> Int64[Tensor, " m"]:
    """For each y the row of x with the most mass in its column (m,).

    With a small epsilon and few steps, masses are often equal: every x whose nearest row is this y
    gives all its mass to it. Among masses that the dtype does not distinguish the nearest x counts,
    and among equally near ones the lowest row.
    """
    rows = torch.empty(len(y), dtype=torch.int64, device=y.device)
    scaled = (u / epsilon).to(y.dtype)
    tolerance = EQUAL_MASS_ROUNDINGS * torch.finfo(y.dtype).eps * scaled.abs().max()
    for piece, block in logit_blocks(y, x, u, epsilon=epsilon):
        lighter = block < (block.amax(dim=1) - tolerance)[:, None]
        rows[piece] = block.sub_(scaled).masked_fill_(lighter, -torch.inf).max(dim=1).indices
    return rows


def logit_blocks(
    rows: Float[Tensor, "n k"],
    others: Float[Tensor, "m k"],
    potential: Float64[Tensor, " m"],
    *,
    epsilon: float,
) -> Iterator[tuple[slice, Float[Tensor, "c m"]]]:
    """(potential_j - M_ij) / epsilon in blocks, as from `product_blocks`, in the dtype of rows."""
    centre = (rows.sum(dim=0, dtype=torch.float64) + others.sum(dim=0, dtype=torch.float64)) / (
        len(rows) + len(others)
    )
    left, left_squares = _scaled(rows, centre, epsilon)
    right, right_squares = _scaled(others, centre, epsilon)
    # The product includes the squares: |x|^2 + |y|^2 - 2 x.y without two more passes over the
    # table.
    left = torch.cat([left.mul_(-2), left_squares, torch.ones_like(left_squares)], dim=1)
    right = torch.cat([right, torch.ones_like(right_squares), right_squares], dim=1)
    scaled = (potential / epsilon).to(rows.dtype)
    for piece, table in product_blocks(left, right, beat=no_beat):
        start = piece.start
        for block in torch.split(
            table,
            max(1, CACHED_NUMBERS // len(others)) if table.device.type == "cpu" else len(table),
        ):
            block.clamp_(min=0).sqrt_()
            yield slice(start, start + len(block)), torch.sub(scaled, block, out=block)
            start += len(block)


def _exponentials(block: Float[Tensor, "c m"]) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
    """The largest of each row l (c,), and the sums of exp(block - l); writes exp(block - l) to the
    block.
    """
    largest = block.amax(dim=1)
    return largest, block.sub_(largest[:, None]).clamp_(min=NEGLIGIBLE_LOGIT).exp_().sum(dim=1)


def _scaled(
    rows: Float[Tensor, "n k"], centre: Float64[Tensor, " k"], epsilon: float
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n 1"]]:
    """(rows - centre) / epsilon, and its squared lengths."""
    scaled = rows.sub(centre.to(rows.dtype)).div_(epsilon)
    return scaled, torch.linalg.vector_norm(
        scaled, dim=1, keepdim=True, dtype=torch.float64
    ).square_().to(rows.dtype)
