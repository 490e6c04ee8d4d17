"""The paper's measures of a set of anchors, and the same measures of translations.

Jaccard, MRR and cosine at K = 10 as in Cannistraci et al. 2023, appendix A.2, and in the code of
Moschella et al. 2023: both lists of neighbours are searched in the target's index, the item itself
included; MRR is 0 for an item that is not among its K. The paper does not say whether it centres
vectors; here they are centred on their pool's mean first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from app.maths.geometry.space import fit_space, row_norms, unit_rows
from app.maths.quality.metrics import DEFAULT_NEIGHBOURS
from app.maths.quality.metrics import jaccard as overlap
from app.maths.translators import methods
from app.maths.translators.translator import Translator, apply

#: rows of the index's table of cosines that are computed at once
ROWS = 1024


@dataclass(frozen=True)
class Retrieved:
    """Means over the queries, at K neighbours, in [0, 1]; cosine in [-1, 1]."""

    jaccard: float
    mrr: float
    cosine: float

    def as_json(self) -> dict[str, float]:
        """The measures by name."""
        return asdict(self)


class Coordinates(NamedTuple):
    """Relative vectors of the same items in two spaces: of the queries (q, r), and of all targets
    (m, r).

    They are a rotation of the cosines to the anchors: the same products, and never more numbers
    than the target has dimensions. `lengths` (q,) are those of the queries' relative vectors, part
    that the r numbers may miss.
    """

    queries: Tensor
    lengths: Tensor
    targets: Tensor


def unit(vectors: Tensor, mean: Tensor | None = None) -> Tensor:
    """float32 rows of length 1, centred first."""
    vectors = vectors if mean is None else vectors - mean
    return unit_rows(vectors.float(), row_norms(vectors))


def relative(queries: Tensor, anchors_x: Tensor, index: Tensor, anchors_y: Tensor) -> Coordinates:
    """Relative vectors (unit rows) of queries (q, d_x) by anchors (k, d_x), and of the index (m,
    d_y) by anchors (k, d_y).

    With the anchors A_y = Q R the relative vectors of the index are Y R^T Q^T, so the part of a
    query's that lies outside Q has no product with them.
    """
    q, r = torch.linalg.qr(anchors_y)
    lengths = row_norms(queries @ torch.linalg.qr(anchors_x).R.T).float()
    return Coordinates(queries @ (anchors_x.T @ q), lengths, index @ r.T)


def retrieved(found: Coordinates, own: Tensor, k: int = DEFAULT_NEIGHBOURS) -> Retrieved:
    """The paper's measures. `own` (q,) is the row of the index that is the query's own item."""
    index = unit(found.targets)
    # A query's length does not matter, because only the order of what it finds counts.
    actual, target = _nearest(found.queries, index, k), _nearest(index[own], index, k)
    place = (actual == own[:, None]).double()
    cosines = (found.queries * index[own]).sum(dim=1) / found.lengths.clamp_min(
        torch.finfo(torch.float32).tiny
    )
    return Retrieved(
        jaccard=float(overlap(actual, target).mean()),
        mrr=float((place / torch.arange(1, k + 1)).sum(dim=1).mean()),
        cosine=float(cosines.double().mean()),
    )


def translated(
    translator: Translator, queries: Tensor, index: Tensor, mean: Tensor, own: Tensor
) -> Retrieved:
    """The same measures of translations: raw queries (q, d_x) translated into the raw index (m,
    d_y), both centred on `mean` (d_y,).
    """
    made = unit(apply(translator, queries.float()).vectors, mean.float())
    return retrieved(Coordinates(made, torch.ones(len(made)), unit(index, mean)), own)


def graded(anchors_x: Tensor, anchors_y: Tensor) -> Translator:
    """The service's default translator, fitted to raw anchors (k, d_x) and (k, d_y)."""
    options = methods.resolve("graded", {}, anchors=len(anchors_x))
    return methods.fit("graded", fit_space(anchors_x), fit_space(anchors_y), options)


def _nearest(queries: Tensor, index: Tensor, k: int) -> Tensor:
    return torch.cat(
        [(rows @ index.T).topk(k, dim=1).indices for rows in torch.split(queries, ROWS)]
    )
