"""Nearest rows between two sets of vectors, in both directions, without the table of all their
cosines.

All functions take unit rows q (n, d) and y (m, d) on one device, work there, and hold a few rows of
the table at a time: TABLE_BYTES at most (but at least one row), and on a CPU few enough for a
fraction of a second; they call `beat` in between. Results are the same for every limit, up to
the rounding of the products: the best row can only differ among rows that float32 does not
distinguish.

Refinement: from a first set of pairs to all that can be found, by graded maps and mutual best
matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor
from torch.nn.functional import normalize

#: Called between the pieces of long work; an exception ends the work.
Beat = Callable[[], None]

#: Bytes for rows of a table.
TABLE_BYTES = 256 * 2**20
#: Multiplications in one piece of work on a CPU: well below a tenth of a second on two cores.
PRODUCTS_PER_PIECE = 2 * 10**9


def no_beat() -> None:
    """Do nothing."""


def random_rows(
    side: Float32[Tensor, "n d"], most: int, generator: torch.Generator
) -> Float32[Tensor, "r d"]:
    """At most `most` rows, in random order."""
    return side[torch.randperm(len(side), generator=generator)[:most].to(side.device)]


def nearest_rows(
    q: Float32[Tensor, "n d"], y: Float32[Tensor, "m d"], k: int, *, beat: Beat = no_beat
) -> tuple[Float32[Tensor, "n k"], Int64[Tensor, "n k"]]:
    """The k largest cosines of each q to rows of y, best first, and those rows; k in 1..m. Ties are
    broken arbitrarily.
    """
    values = q.new_empty(len(q), k)
    rows = torch.empty(len(q), k, dtype=torch.int64, device=q.device)
    for piece, cosines in product_blocks(q, y, beat=beat):
        torch.topk(cosines, k, dim=1, out=(values[piece], rows[piece]))
    return values, rows


def product_blocks(
    left: Float[Tensor, "n d"], right: Float[Tensor, "m d"], *, beat: Beat
) -> Iterator[tuple[slice, Float[Tensor, "c m"]]]:
    """Rows of left right^T, as (which rows, the block). The next block overwrites it, and the
    consumer may do so before.
    """
    fits = TABLE_BYTES // (len(right) * left.element_size())
    if left.device.type == "cpu":
        fits = min(fits, PRODUCTS_PER_PIECE // right.numel())
    step = max(1, min(len(left), fits))
    table = left.new_empty(step, len(right))
    for start in range(0, len(left), step):
        beat()
        piece = slice(start, min(start + step, len(left)))
        yield piece, torch.mm(left[piece], right.T, out=table[: piece.stop - start])


def product(
    left: Float32[Tensor, "n d"], right: Float32[Tensor, "d m"], *, beat: Beat
) -> Float32[Tensor, "n m"]:
    """The whole product, computed in pieces."""
    table = left.new_empty(len(left), right.shape[1])
    for piece, block in product_blocks(left, right.T, beat=beat):
        table[piece] = block
    return table


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


def csls_factors(
    q: Float32[Tensor, "n d"], y: Float32[Tensor, "m d"], *, beat: Beat
) -> tuple[Float32[Tensor, "n e"], Float32[Tensor, "m e"]]:
    """Matrices whose product is CSLS = 2 q.y - r_q - r_y of unit rows, r the mean cosine of a row
    to the CSLS_NEIGHBOURS nearest on the other side.

    Source: Conneau, Lample et al. 2018, section 2.3.
    """
    k = min(CSLS_NEIGHBOURS, len(q), len(y))
    # Computing the products again for the other side is twice as fast as the largest values of each
    # column.
    mean_q, mean_y = (
        nearest_rows(*sides, k, beat=beat)[0].mean(dim=1, keepdim=True)
        for sides in ((q, y), (y, q))
    )
    # Two more dimensions instead of two more passes over the table.
    left = torch.cat([2 * q, -mean_q, torch.ones_like(mean_q)], dim=1)
    right = torch.cat([y, torch.ones_like(mean_y), -mean_y], dim=1)
    return left, right


def mutual_partners(
    q: Float32[Tensor, "n ry"], y: Float32[Tensor, "m ry"], *, beat: Beat
) -> Int64[Tensor, " n"]:
    """(n,) for each row of unit q its mutual best match by CSLS in the rows of unit y, or -1; of
    equal scores the lowest row.
    """
    left, right = csls_factors(q, y, beat=beat)
    y_of_q = torch.empty(len(q), dtype=torch.int64, device=q.device)
    q_of_y, score_y = (
        torch.zeros_like(y[:, 0], dtype=torch.int64),
        torch.full_like(y[:, 0], -torch.inf),
    )
    for piece, scores in product_blocks(left, right, beat=beat):
        column, row = scores.max(dim=0)
        # Strictly greater: an earlier block has the lower row.
        better = column > score_y
        torch.where(better, row + piece.start, q_of_y, out=q_of_y)
        torch.where(better, column, score_y, out=score_y)
        y_of_q[piece] = scores.argmax(dim=1)
    rows = torch.arange(len(q), device=q.device)
    return torch.where(q_of_y[y_of_q] == rows, y_of_q, -1)


def learn_and_match(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    pairs: Int64[Tensor, "p 2"],
    *,
    beat: Beat,
) -> Int64[Tensor, " n"]:
    """Learn the graded map from the pairs, and match all rows by it; y need not have unit rows."""
    transform = graded_map(x[pairs[:, 0]], y[pairs[:, 1]])
    return mutual_partners(normalize(x @ transform.float()), normalize(y), beat=beat)
