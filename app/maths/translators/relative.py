"""Relative vectors as the service answers them: n(x) E, a few rows at a time."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from app.errors import blaming
from app.maths.geometry.space import check_vectors, normalise
from app.maths.translators.translator import ROWS_PER_STEP, SAFE_FARTHEST, least_distance


def relate_into(
    projector: Float32[Tensor, "d k"],
    mean: Float32[Tensor, " d"],
    vectors: Float[Tensor, "n d"],
    out: Float32[Tensor, "n k"],
) -> Bool[Tensor, " n"]:
    """Write n(x) E of vectors (n, d), any float dtype, in the encoder's units, to `out` (n, k).

    projector  (d, k)  E; the unit anchors' transpose gives the k cosines, dimensionless (Moschella
               et al. 2023, equation 2)
    mean       (d,)    the anchors' mean, in the encoder's units
    A row at the mean gives zeros. The division by |x - m| follows the product: there it costs k
    numbers a row instead of d.
    Returns which rows (n,) are at the mean, on the CPU. Raises NonFinite and OutOfRange, naming the
    rows of one step only.
    """
    at_mean = torch.zeros(len(vectors), dtype=torch.bool)
    step = ROWS_PER_STEP if out.device.type == "cpu" else len(vectors)  # a GPU needs no steps
    scratch = out.new_empty(min(len(vectors), step), len(mean))
    nearest = least_distance(mean)
    for start in range(0, len(vectors), step):
        rows = slice(start, min(start + step, len(vectors)))
        centred = scratch[: rows.stop - start].copy_(vectors[rows]).sub_(mean)
        norms = torch.linalg.vector_norm(centred, dim=1)
        near, far = (float(bound) for bound in norms.aminmax())
        if nearest <= near and far <= SAFE_FARTHEST:
            torch.mm(centred, projector, out=out[rows])
            out[rows].div_(norms[:, None])
            continue
        with blaming(rows_from=start):
            check_vectors(vectors[rows])
        unit, exact = normalise(vectors[rows].float(), mean)
        torch.mm(unit, projector, out=out[rows])
        at_mean[rows] = (exact == 0).cpu()
    return at_mean
