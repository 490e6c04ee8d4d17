"""A torch layer from absolute vectors to relative ones, to train decoders on. Needs torch.

A decoder that reads relative vectors reads those of every encoder that has embedded the same
anchors (Moschella et al. 2023, appendix A.5.4). The layer equals /relative of the service.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from anchorage_client.vectors import VectorsLike, as_array

#: roundings of float32 within which a vector counts as the mean, as in the service
MEAN_ROUNDINGS = 8

#: relative errors of an encoder's numbers, by the least precise type that holds them
ROUNDING = {
    torch.bfloat16: torch.finfo(torch.bfloat16).eps,
    torch.float16: torch.finfo(torch.float16).eps,
    torch.float32: MEAN_ROUNDINGS * torch.finfo(torch.float32).eps,
}

#: the largest part of a covariance that its shrinkage may replace
MAX_SHRINKAGE = 0.9


class RelativeLayer(nn.Module):
    """Maps vectors (..., d) to relative vectors (..., k): n(x) E, n(x) = (x - m) / |x - m|.

    E = (U^T U + ridge I)^-encode_power U^T, where the k rows of U are the anchors' n(x), and m is
    their mean. With `encode_power=0` these are the cosines to the anchors. A vector at the mean
    gives zeros. `mean` and `projector` are buffers: they have no gradient and move with the layer.
    Gradients reach the vectors.

    anchors       (k, d), in the encoder's units, in the order of the anchor set
    encode_power  0 to 1, the exponent of the whitening
    ridge         of the whitening; None: the service's rule
    Raises ValueError for anchors that are all equal, and for options outside their limits.
    """

    mean: Tensor
    projector: Tensor

    def __init__(
        self, anchors: VectorsLike, *, encode_power: float = 0.0, ridge: float | None = None
    ) -> None:
        super().__init__()
        if not 0.0 <= encode_power <= 1.0:
            raise ValueError(f"`encode_power` must lie in [0, 1], got {encode_power}.")
        if ridge is not None and (encode_power == 0 or not ridge >= 0):
            raise ValueError("`ridge` must be at least 0, and needs an `encode_power` above 0.")
        rows = torch.from_numpy(as_array(anchors).copy()).double()
        mean = rows.mean(dim=0)
        centred = rows - mean
        centred = centred - centred.mean(dim=0)  # removes the rounding of a large mean
        lengths = torch.linalg.vector_norm(centred, dim=1)
        if not bool(rows.isfinite().all()) or bool(lengths.max() <= _floor(mean)):
            raise ValueError("Anchors must be finite, and at least two of them must differ.")
        apart = lengths > _floor(mean)
        unit = torch.where(apart[:, None], centred / lengths.where(apart, 1.0)[:, None], 0.0)
        if encode_power > 0:
            unit = _whitened(unit, _noise(rows, lengths, mean), encode_power, ridge)
        self.register_buffer("mean", mean.float())
        self.register_buffer("projector", unit.T.float().contiguous())

    @property
    def dim(self) -> int:
        """The number of anchors, which is the dimension of relative vectors."""
        return self.projector.shape[1]

    def forward(self, vectors: Tensor) -> Tensor:
        """Return relative vectors (..., k) of vectors (..., d)."""
        centred = vectors - self.mean
        lengths = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
        apart = lengths > _floor(self.mean)
        # The inner `where` keeps NaN out of the gradient of a vector at the mean.
        inverse = torch.where(apart, lengths.where(apart, 1.0).reciprocal(), 0.0)
        return torch.matmul(centred, self.projector).mul(inverse)

    def extra_repr(self) -> str:
        """Return the dimensions, for `repr`."""
        return f"{len(self.mean)} -> {self.dim}"


def _floor(mean: Tensor) -> Tensor:
    """Return the length below which a centred vector is rounding of the mean (d,)."""
    length: Tensor = torch.linalg.vector_norm(mean)
    return length * (MEAN_ROUNDINGS * torch.finfo(torch.float32).eps)


def _noise(rows: Tensor, lengths: Tensor, mean: Tensor) -> float:
    """Return the largest singular value that the rounding of anchors (k, d) can make."""
    k, d = rows.shape
    roundings = (
        value for dtype, value in ROUNDING.items() if torch.equal(_cast(rows, dtype), rows)
    )
    sizes = (lengths.square() + mean.square().sum()).sqrt()
    errors = torch.where(lengths > 0, sizes / lengths, 0.0)
    spread = 1.0 + math.sqrt(k / d)
    return next(roundings, 0.0) * spread * float(errors.square().mean().sqrt())


def _cast(rows: Tensor, dtype: torch.dtype) -> Tensor:
    return rows.to(dtype).to(rows.dtype)


def _whitened(unit: Tensor, noise: float, power: float, ridge: float | None) -> Tensor:
    """Return U (U^T U + ridge I)^-power of unit anchors U (k, d), by SVD."""
    left, values, right = torch.linalg.svd(unit, full_matrices=False)
    rounding = max(unit.shape) * torch.finfo(torch.float64).eps * float(values[0])
    rank = int((values > max(rounding, noise)).sum())
    left, values, right = left[:, :rank], values[:rank], right[:rank]
    squares = values.square()
    if ridge is None:
        ridge = _usual_ridge(squares, *unit.shape)
    kept: Tensor = (left * (values * (squares + ridge).pow(-power))) @ right
    return kept


def _usual_ridge(squares: Tensor, k: int, d: int) -> float:
    """Return half the geometric mean of the shrunk squared singular values of unit anchors.

    The shrinkage is that of Ledoit and Wolf (2004, section 3.3).
    """
    if not len(squares):
        return 1.0
    power = float(squares.square().sum()) / k**2
    spread = power - 1.0 / d
    part = max(0.0, 1.0 - power) / k / spread if spread > 0 else MAX_SHRINKAGE
    part = min(MAX_SHRINKAGE, part)
    return 0.5 * math.exp(float((squares + k / d * part / (1.0 - part)).log().mean()))
