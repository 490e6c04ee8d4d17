"""Finds the rows that are anchors, without comparing every row with every anchor.

With unit vectors u and a, cos(u, a) > 1 - e means |u - a| < sqrt(2 e), and so every projection P
with orthonormal columns has |u P - a P| < sqrt(2 e). The anchors are sorted by their first
coordinate; a row is compared only with those in its window, first by PROJECTIONS coordinates, and
the rest exactly. The columns of P approximate the directions in which the anchors differ most, so
that windows are small.
Source: sorting by a projection is that of Friedman, Baskett and Shustek 1975, "An algorithm for
finding nearest neighbors".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from app.maths.geometry.space import row_norms

#: A row is an anchor when their cosine is above 1 less this: float16 rounds to about 1e-7.
SAME_COSINE = 1e-6

#: Coordinates that are compared before a pair is compared exactly.
PROJECTIONS = 8

#: Rounds of the iteration that finds the directions in which the anchors differ most.
POWER_ROUNDS = 4

#: Most pairs of a row and an anchor that are compared at a time.
COMPARED_AT_ONCE = 2**18

#: Pairs whose vectors are compared at a time.
EXACT_PAIRS = 4096

#: Rounding of a projection in float32.
PROJECTION_NOISE = 1e-6


@dataclass(frozen=True, eq=False)
class KnownRows:
    """Anchors, sorted by their first projection.

    unit         (k, d) unit anchors, in the sorted order; zero for an anchor without a direction
    projections  (d, p) P
    coordinates  (k, p) of the anchors, whose first column rises
    places       (k,) the anchors' own positions
    """

    unit: Float32[Tensor, "k d"]
    projections: Float32[Tensor, "d p"]
    coordinates: Float32[Tensor, "k p"]
    places: Int64[Tensor, " k"]

    @property
    def nbytes(self) -> int:
        parts = (self.unit, self.projections, self.coordinates, self.places)
        return sum(each.nbytes for each in parts)


def index_known_rows(anchors: Float[Tensor, "k d"]) -> KnownRows:
    """Sort raw anchors (k, d) for `find_known_rows`. Equal anchors give equal results."""
    unit = _unit(anchors)
    count = min(PROJECTIONS, *anchors.shape)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(anchors.shape[1], count, generator=generator).to(unit)
    basis = torch.linalg.qr(start).Q
    centred = unit - unit.mean(dim=0)
    for _ in range(POWER_ROUNDS):
        # The start keeps the basis of full rank where all anchors are equal.
        basis = torch.linalg.qr(centred.T @ (centred @ basis) + 1e-6 * start).Q
    coordinates = unit @ basis
    order = coordinates[:, 0].argsort(stable=True)
    return KnownRows(unit[order], basis.contiguous(), coordinates[order], order)


def find_known_rows(known: KnownRows, vectors: Float[Tensor, "n d"]) -> Int64[Tensor, " n"]:
    """The anchor (n,) that each vector (n, d) equals except for its length; -1 where there is none.

    Of several anchors it is the nearest one, and the first of equally near ones. Vectors that are
    zero or not finite equal no anchor.
    """
    unit = _unit(vectors)
    coordinates = unit @ known.projections
    radius = (2.0 * SAME_COSINE) ** 0.5 + PROJECTION_NOISE
    first, column = coordinates[:, 0].contiguous(), known.coordinates[:, 0].contiguous()
    low = torch.searchsorted(column, first - radius)
    counts = torch.searchsorted(column, first + radius, right=True) - low
    counts[unit.abs().amax(dim=1) == 0] = 0
    anchor = torch.full_like(low, -1)
    for start, stop in _steps(counts):
        span = torch.arange(start, stop, device=low.device)
        rows = torch.repeat_interleave(span, counts[start:stop])
        ends = counts[start:stop].cumsum(0)
        within = (
            torch.arange(len(rows), device=low.device) - (ends - counts[start:stop])[rows - start]
        )
        others = low[rows] + within
        apart = (coordinates[rows] - known.coordinates[others]).square().sum(dim=1)
        near = apart <= radius**2
        _keep_nearest(known, unit, rows[near], others[near], anchor)
    return anchor


def _keep_nearest(
    known: KnownRows, unit: Tensor, rows: Tensor, others: Tensor, anchor: Tensor
) -> None:
    """Write the anchor of each row, from pairs of rows and sorted anchors that may be equal."""
    if len(rows) == 0:
        return
    apart = torch.cat(
        [
            (unit[rows[step]] - known.unit[others[step]]).double().square().sum(dim=1) / 2.0
            for step in (slice(i, i + EXACT_PAIRS) for i in range(0, len(rows), EXACT_PAIRS))
        ]
    )
    same = apart < SAME_COSINE
    rows, places, apart = rows[same], known.places[others[same]], apart[same]
    # By row, then the nearest, then the first: of each row the first pair counts.
    order = places.argsort(stable=True)
    order = order[apart[order].argsort(stable=True)]
    order = order[rows[order].argsort(stable=True)]
    rows, places = rows[order], places[order]
    first = torch.ones_like(rows, dtype=torch.bool)
    first[1:] = rows[1:] != rows[:-1]
    anchor[rows[first]] = places[first]


def _steps(counts: Int64[Tensor, " n"]) -> list[tuple[int, int]]:
    """Spans of rows with at most COMPARED_AT_ONCE pairs, and at least one row."""
    ends = counts.cumsum(0).cpu()
    spans, start, taken = [], 0, 0
    while start < len(counts):
        stop = int(torch.searchsorted(ends, taken + COMPARED_AT_ONCE, right=True))
        stop = max(stop, start + 1)
        spans.append((start, stop))
        start, taken = stop, int(ends[stop - 1])
    return spans


def _unit(vectors: Float[Tensor, "n d"]) -> Float32[Tensor, "n d"]:
    """Unit vectors; zero for those that are zero or not finite."""
    norms = row_norms(vectors)
    usable = norms.isfinite() & (norms > 0)
    divisor = torch.where(usable, norms, 1.0)[:, None]
    return torch.where(usable[:, None], vectors.double() / divisor, 0.0).float()
