"""The fused map that serves translations: translate(x) = s_y * r(n(x) T) + m_y, or with a kernel
s_y * r(f(n(x) L^T) B) + m_y. A fit may be complex; applying it is this module.

`apply` handles the rows in steps that fit a core's cache: it reads each vector from memory once,
computes one product, and writes each translation once. It does not compute n where r cancels it:
r(n(x) T) = r((x - m) T). With landmarks it divides by |x - m| after the first of the two products.

Relative vectors as the service answers them: n(x) E, a few rows at a time.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64
from torch import Tensor

from app.errors import AnchorageError, OutOfRange, blaming
from app.maths.geometry.space import (
    LARGEST_MAGNITUDE,
    ROUNDING,
    Space,
    check_shape,
    check_vectors,
    normalise,
    row_norms,
)
from app.maths.translators.decoder import (
    Decoder,
    TranslatedRows,
    decode_coordinates,
    kernel_of,
    make_decoder,
)

#: Rows of one step of `apply`: 1.5 MB of scratch memory at 768 dimensions.
ROWS_PER_STEP = 512

#: Between these distances from the mean, squares and products stay within float32; other rows take
#: the careful path.
SAFE_NEAREST, SAFE_FARTHEST = 1e-12, 1e12


class _Arrays(NamedTuple):
    """The arrays of a translator: m_x (d_x,), T (d_x, d_y) or B (k, d_y), m_y (d_y,), and L^T
    (d_x, k) of a kernel.
    """

    source_mean: np.ndarray[Any, np.dtype[np.float32]]
    matrix: np.ndarray[Any, np.dtype[np.float32]]
    target_mean: np.ndarray[Any, np.dtype[np.float32]]
    landmarks: np.ndarray[Any, np.dtype[np.float32]] | None


#: Which rows (n,) are at the mean, and which lie outside the span of the anchors.
RowFlags = tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]


@dataclass(frozen=True, eq=False)
class Translator:
    """The fused map source space -> target space.

    source_mean  (d_x,)      m_x, in the source encoder's units
    decoder      (d_x, d_y)  T = E_x D_y in place of D, and the target's s_y, m_y and renormalise
    kept_scale               s_x where norms are kept: a vector c times as far from its mean as
                             usual is placed c times as far from the target's mean. None: every
                             vector is placed at the target's usual distance
    landmarks    (d_x, k)    L^T, dimensionless, of a kernel; its decoder is B (k, d_y). None: the
                             map is linear
    """

    source_mean: Float32[Tensor, " dx"]
    decoder: Decoder
    kept_scale: float | None = None
    landmarks: Float32[Tensor, "dx k"] | None = None

    @cached_property
    def dims(self) -> tuple[int, int]:
        """d_x and d_y."""
        return self.source_mean.shape[0], self.decoder.matrix.shape[1]

    @property
    def multiplications(self) -> int:
        """Those of one row: d_x d_y, or k (d_x + d_y)."""
        reads, makes = self.dims
        return (
            reads * makes
            if self.landmarks is None
            else self.decoder.matrix.shape[0] * (reads + makes)
        )

    @property
    def nbytes(self) -> int:
        landmarks = 0 if self.landmarks is None else self.landmarks.nbytes
        return self.source_mean.nbytes + self.decoder.nbytes + landmarks

    @cached_property
    def energy(self) -> Float32[Tensor, " dx"]:
        """Squared lengths (d_x,) of the rows of the matrix that multiplies n(x)."""
        if self.landmarks is None:
            return self.decoder.energy
        return self.landmarks.double().square().sum(dim=1).float()

    @cached_property
    def max_energy(self) -> float:
        """The largest of `energy`."""
        return float(self.energy.max())

    @cached_property
    def arrays(self) -> _Arrays:
        """The same memory as numpy arrays; copies, where it is not on the CPU."""
        return _Arrays(
            self.source_mean.cpu().numpy(),
            self.decoder.matrix.cpu().numpy(),
            self.decoder.mean.cpu().numpy(),
            None if self.landmarks is None else self.landmarks.cpu().numpy(),
        )

    @cached_property
    def offset(self) -> float:
        """sum_i m_i^2 |T_i|^2, with L^T for T where there are landmarks: the error of the first
        product that the rounding of x - m, relative to m, adds.
        """
        return float(self.source_mean.double().square() @ self.energy.double())

    def rounding_of(self, length: float) -> float:
        """The length below which the first product of a row of that length, less m_x, may be
        noise.
        """
        return ROUNDING * math.sqrt(length * length * self.max_energy + self.offset)

    @cached_property
    def nearest(self) -> float:
        """`least_distance` of m_x."""
        return least_distance(self.source_mean)


def least_distance(mean: Float32[Tensor, " d"]) -> float:
    """The distance from a mean (d,), in its units, below which only the careful path decides
    whether a vector has a direction.
    """
    return max(SAFE_NEAREST, 2 * ROUNDING * float(mean.double().norm()))


def make_translator(
    source: Space,
    target: Space,
    matrix: Float64[Tensor, "m dy"],
    *,
    renormalise: bool = True,
    keep_norms: bool = False,
    landmarks: Float64[Tensor, "m dx"] | None = None,
) -> Translator:
    """The translator that serves a fitted T (d_x, d_y), or B (k, d_y) with landmarks L (k, d_x), in
    float32.
    """
    decoder = make_decoder(target, matrix, renormalise=renormalise, kernel=landmarks is not None)
    columns = None if landmarks is None else landmarks.T.float().contiguous()
    return Translator(source.mean.float(), decoder, source.scale if keep_norms else None, columns)


def apply(translator: Translator, vectors: Float[Tensor, "n dx"]) -> TranslatedRows:
    """Translate vectors (n, d_x), in the source encoder's units and any float dtype, in float32.

    A vector equal to the source's mean, or outside the span of the anchors, becomes the target's
    mean and is flagged. Raises as `check_vectors`: EmptyVectors, DimensionMismatch, NonFinite,
    OutOfRange. Raises OutOfRange also for vectors so far from the mean that keeping their norm
    overflows.
    """
    check_shape(vectors, dim=translator.dims[0])
    translated = torch.empty(len(vectors), translator.dims[1], device=vectors.device)
    try:
        flagged = apply_into(translator, vectors, translated)
    except AnchorageError:
        check_vectors(vectors)  # names all rows, not only those of one step
        raise
    return TranslatedRows(translated, *(flagged or no_flags(len(vectors))))


@lru_cache(maxsize=64)
def no_flags(count: int) -> RowFlags:
    """Flags for `count` rows, all False; read-only, because calls share them."""
    none = torch.zeros(count, dtype=torch.bool)
    return none, none


def apply_into(
    translator: Translator, vectors: Float[Tensor, "n dx"], out: Float32[Tensor, "n dy"]
) -> RowFlags | None:
    """`apply` for vectors of the right shape, written to `out` (n, d_y). With one thread of torch
    it is as fast as the product.

    Returns which rows (n,) are at the mean and which outside, or None if there are none. Raises
    NonFinite and OutOfRange, naming the rows of one step only.
    """
    count = vectors.shape[0]
    if count <= ROWS_PER_STEP or out.device.type != "cpu":  # a GPU needs no steps
        return _step(translator, vectors, out)
    flagged: RowFlags | None = None
    for start in range(0, count, ROWS_PER_STEP):
        rows = slice(start, min(start + ROWS_PER_STEP, count))
        with blaming(rows_from=start):
            flags = _step(translator, vectors[rows], out[rows])
        if flags is not None:
            flagged = flagged or (
                torch.zeros(count, dtype=torch.bool),
                torch.zeros(count, dtype=torch.bool),
            )
            flagged[0][rows], flagged[1][rows] = flags
    return flagged


def _step(
    translator: Translator, vectors: Float[Tensor, "n dx"], out: Float32[Tensor, "n dy"]
) -> RowFlags | None:
    if _fast_step(translator, vectors, out):
        return None
    careful = _careful_step(translator, vectors)
    out.copy_(careful.vectors)
    return careful.at_mean.cpu(), careful.outside.cpu()


def _fast_step(
    translator: Translator, vectors: Float[Tensor, "n dx"], out: Float32[Tensor, "n dy"]
) -> bool:
    """Translate rows that need no special care. Returns False, with undefined numbers in `out`, if
    a row might need it.

    No row needs care when all are finite, well away from the mean, and their products are well
    above rounding noise.
    """
    if vectors.shape[0] == 1 and out.device.type == "cpu":
        with np.errstate(all="ignore"):  # the careful path repeats rows that overflow
            return _fast_row(translator, vectors[0], out)
    decoder = translator.decoder
    centred = vectors.float() - translator.source_mean
    norms = torch.linalg.vector_norm(centred, dim=1)
    near, far = _shortest_and_longest(norms)
    if not (translator.nearest <= near and far <= SAFE_FARTHEST):  # false for NaN
        return False
    # An upper bound of a row's factor: s_y / its length, times the factor that keeps its norm.
    stretch = 1.0 if translator.kept_scale is None else far / translator.kept_scale
    noise = translator.rounding_of(far)
    if translator.landmarks is not None:
        products = centred @ translator.landmarks
        short, _ = _shortest_and_longest(torch.linalg.vector_norm(products, dim=1))
        if not short > noise:
            return False
        features = kernel_of(products.div_(norms[:, None]))
        torch.mm(features, decoder.matrix, out=out)
        _, longest = _shortest_and_longest(torch.linalg.vector_norm(features, dim=1))
        noise = decoder.rounding_of(longest)
        near, norms = 1.0, torch.ones_like(norms)  # the features are those of unit vectors
    else:
        torch.mm(centred, decoder.matrix, out=out)
    lengths = torch.linalg.vector_norm(out, dim=1)
    short, long = _shortest_and_longest(lengths)
    if not (short > noise and short >= SAFE_NEAREST and long <= SAFE_FARTHEST):
        return False
    if (
        not decoder.scale * stretch * (1.0 if decoder.renormalise else long / near)
        <= LARGEST_MAGNITUDE
    ):
        return False
    factor = (lengths if decoder.renormalise else norms).reciprocal_().mul_(decoder.scale)
    if translator.kept_scale is not None:
        factor *= torch.linalg.vector_norm(centred, dim=1).div_(translator.kept_scale)
    torch.addcmul(decoder.mean, out, factor[:, None], out=out)
    return True


def _fast_row(
    translator: Translator, vector: Float[Tensor, " dx"], out: Float32[Tensor, "1 dy"]
) -> bool:
    """`_fast_step` for one row, in numpy. It takes half the time, because torch multiplies one row
    as it would many.
    """
    decoder, rows = translator.decoder, translator.arrays
    centred = vector.numpy().astype(np.float32)
    centred -= rows.source_mean
    norm = math.sqrt(centred.dot(centred))
    if not translator.nearest <= norm <= SAFE_FARTHEST:
        return False
    product = out.numpy()[0]
    noise, reach = translator.rounding_of(norm), norm
    if rows.landmarks is None:
        np.dot(centred, rows.matrix, out=product)
    else:
        features = np.dot(centred, rows.landmarks)
        if not math.sqrt(features.dot(features)) > noise:
            return False
        features /= norm
        np.expm1(features, out=features)  # `kernel_of`
        np.dot(features, rows.matrix, out=product)
        noise, reach = decoder.rounding_of(math.sqrt(features.dot(features))), 1.0
    length = math.sqrt(product.dot(product))
    if not (length > noise and SAFE_NEAREST <= length <= SAFE_FARTHEST):
        return False
    factor = decoder.scale / (length if decoder.renormalise else reach)
    if translator.kept_scale is not None:
        factor *= norm / translator.kept_scale
    if not factor * length <= LARGEST_MAGNITUDE:
        return False
    product *= factor
    product += rows.target_mean
    return True


def _shortest_and_longest(lengths: Float32[Tensor, " n"]) -> tuple[float, float]:
    """The shortest and the longest; NaN if one of them is NaN."""
    low, high = lengths.aminmax()
    return low.item(), high.item()


def _careful_step(translator: Translator, vectors: Float[Tensor, "n dx"]) -> TranslatedRows:
    """Translate any rows: refuse NaN, scale tiny and huge rows first, and separate rows without a
    direction.
    """
    check_vectors(vectors)
    unit, norms = normalise(vectors.float(), translator.source_mean)
    at_mean = norms == 0
    # The error from the rounding of x - m, relative to m; it adds to that of n(x).
    carried = (translator.offset / torch.where(at_mean, 1.0, norms).square()).float()
    stretch = (
        None if translator.kept_scale is None else (norms.double() / translator.kept_scale).float()
    )
    if translator.landmarks is None:
        coordinates = unit
    else:
        coordinates = unit @ translator.landmarks
        noise = ROUNDING * (unit.square() @ translator.energy + carried).sqrt()
        coordinates *= (row_norms(coordinates) > noise)[:, None]
        carried = torch.zeros(1, device=unit.device)
    translated, known = decode_coordinates(translator.decoder, coordinates, carried, stretch)
    if stretch is not None and (
        far := (~translated.isfinite().all(dim=1)).nonzero().flatten().tolist()
    ):
        raise OutOfRange(
            f"{len(far)} vectors are too far from the mean to keep their norm in float32. "
            "Scale them down, or set `keep_norms` to false.",
            rows=far,
        )
    return TranslatedRows(translated, at_mean, ~known & ~at_mean)


def content_hash(translator: Translator) -> str:
    """SHA-256 of everything that `apply` depends on, as 32 hexadecimal digits: equal hashes
    translate alike.
    """
    decoder = translator.decoder
    digest = hashlib.sha256(
        f"{decoder.scale!r} {decoder.renormalise} {list(translator.dims)}".encode()
    )
    if translator.kept_scale is not None:
        digest.update(f" {translator.kept_scale!r}".encode())
    for tensor in (translator.source_mean, decoder.matrix, decoder.mean, translator.landmarks):
        if tensor is None:
            continue
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


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
