"""The one object serving knows: translate(x) = s_y * r(n(x) T) + m_y. Fitting may be rich; applying is this page.

`apply` goes through the rows in steps that stay in a core's cache: each vector is read from memory once, each translation
written once, and between the two there is one product. n is not computed where r cancels it: r(n(x) T) = r((x - m) T).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64
from torch import Tensor

from app.errors import AnchorageError, OutOfRange
from app.maths.geometry.space import LARGEST_MAGNITUDE, NOISE_ROUNDINGS, Space, check_shape, check_vectors, normalise, row_norms, unit_rows

#: rows of one step of `apply`: 1.5 MB of scratch at 768 dimensions
ROWS_PER_STEP = 512

#: distances from the mean whose squares and products float32 holds without a thought: others take the careful way
SAFE_NEAREST, SAFE_FARTHEST = 1e-12, 1e12

#: bfloat16 products have 8 bits of mantissa, and are as noisy
ProductPrecision = Literal["float32", "bfloat16"]
UNIT_ROUNDOFF = {
    "float32": torch.finfo(torch.float32).eps,
    "bfloat16": torch.finfo(torch.bfloat16).eps,
}


class _Arrays(NamedTuple):
    """A translator's arrays: m_x (d_x,), T (d_x, d_y), m_y (d_y,)."""

    source_mean: np.ndarray[Any, np.dtype[np.float32]]
    matrix: np.ndarray[Any, np.dtype[np.float32]]
    target_mean: np.ndarray[Any, np.dtype[np.float32]]


#: which rows (n,) are at the mean, and which outside what the anchors span
RowFlags = tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]


@dataclass(frozen=True, eq=False)
class Decoder:
    """Out of relative coordinates: decode(r) = s_y * r'(r D) + m_y, made from the target's anchors alone.

    matrix       (k, d_y)  D for vectors that come as relative coordinates
    energy       (k,)      the squared lengths of D's rows: how far a rounding of each coordinate carries
    scale, mean            s_y and m_y (d_y,), in the target encoder's units
    renormalise            whether r' scales to unit length before s_y (an ensemble mean shrinks norms) or is the identity
    """

    matrix: Float32[Tensor, "k dy"]
    energy: Float32[Tensor, " k"]
    scale: float
    mean: Float32[Tensor, " dy"]
    renormalise: bool

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes + self.energy.nbytes + self.mean.nbytes

    @cached_property
    def most_energy(self) -> float:
        """The largest of `energy`."""
        return float(self.energy.max())

    @cached_property
    def rounded(self) -> Tensor:
        """D in bfloat16."""
        return self.matrix.bfloat16()


@dataclass(frozen=True, eq=False)
class Translator:
    """The fused map source space -> target space.

    source_mean  (d_x,)      m_x, in the source encoder's units
    decoder      (d_x, d_y)  T = E_x D_y in place of D, and the target's s_y, m_y and renormalise
    kept_scale               s_x where norms are kept: a vector c times as far from its mean as is usual there comes to lie c
                             times as far from the target's; None: every vector lies at the target's usual distance
    """

    source_mean: Float32[Tensor, " dx"]
    decoder: Decoder
    kept_scale: float | None = None

    @cached_property
    def dims(self) -> tuple[int, int]:
        """d_x and d_y."""
        return self.decoder.matrix.shape[0], self.decoder.matrix.shape[1]

    @property
    def nbytes(self) -> int:
        return self.source_mean.nbytes + self.decoder.nbytes

    @cached_property
    def arrays(self) -> _Arrays:
        """The same memory as numpy sees it."""
        return _Arrays(
            self.source_mean.numpy(), self.decoder.matrix.numpy(), self.decoder.mean.numpy()
        )

    @cached_property
    def offset(self) -> float:
        """What the rounding of x - m, relative to m, adds to that of the product: sum_i m_i^2 |T_i|^2."""
        return float(self.source_mean.double().square() @ self.decoder.energy.double())

    @cached_property
    def nearest(self) -> float:
        """`least_distance` of m_x."""
        return least_distance(self.source_mean)


@dataclass(frozen=True, eq=False)
class TranslatedRows:
    """vectors  (n, d_y) in the target's units: float32, or float16 rounded from it
    at_mean  (n,) rows that equal the source's mean: they have no direction, and became the target's mean
    outside  (n,) rows whose direction the anchors do not span: nothing is known of it, and they became the target's mean
    """

    vectors: Float[Tensor, "n dy"]
    at_mean: Bool[Tensor, " n"]
    outside: Bool[Tensor, " n"]


def least_distance(mean: Float32[Tensor, " d"]) -> float:
    """The distance from a mean (d,), in its units, below which only the careful way tells whether a vector has a direction."""
    return max(SAFE_NEAREST, 2 * NOISE_ROUNDINGS * UNIT_ROUNDOFF["float32"] * float(mean.double().norm()))


def make_decoder(
    target: Space, matrix: Float64[Tensor, "m dy"], *, renormalise: bool = True
) -> Decoder:
    """Round a fitted matrix and the target's statistics to float32, the precision of serving."""
    energy = matrix.square().sum(dim=1).float()
    return Decoder(
        matrix.float().contiguous(), energy, target.scale, target.mean.float(), renormalise
    )


def make_translator(
    source: Space,
    target: Space,
    matrix: Float64[Tensor, "dx dy"],
    *,
    renormalise: bool = True,
    keep_norms: bool = False,
) -> Translator:
    """The translator that serves a fitted T (d_x, d_y), in float32."""
    decoder = make_decoder(target, matrix, renormalise=renormalise)
    return Translator(source.mean.float(), decoder, source.scale if keep_norms else None)


def decode(decoder: Decoder, relative: Float[Tensor, "n k"]) -> TranslatedRows:
    """s_y * r'(r D) + m_y for relative vectors r (n, k), float of any width, decoded in float32.

    A row of zeros is that of a vector equal to its own mean. Raises as `check_vectors`, and OutOfRange for rows so large that
    their product overflows.
    """
    check_vectors(relative, dim=decoder.matrix.shape[0])
    coordinates = relative.float()
    vectors, known = decode_coordinates(decoder, coordinates, torch.zeros(1))
    overflowed = (~vectors.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if overflowed:
        raise OutOfRange(
            f"{len(overflowed)} relative vectors are too large to decode in float32",
            rows=overflowed,
        )
    at_mean = coordinates.abs().amax(dim=1) == 0
    return TranslatedRows(vectors, at_mean, ~known & ~at_mean)


def apply(
    translator: Translator, vectors: Float[Tensor, "n dx"], *, precision: ProductPrecision = "float32"
) -> TranslatedRows:
    """Translate vectors (n, d_x), in the source encoder's units and any float dtype, in float32.

    A vector equal to the source's mean, or outside what the anchors span, becomes the target's mean, and is flagged.
    Raises as `check_vectors`: EmptyVectors, DimensionMismatch, NonFinite, OutOfRange; the last also for vectors so far from the
    mean that keeping their norm overflows.
    """
    check_shape(vectors, dim=translator.dims[0])
    translated = torch.empty(len(vectors), translator.dims[1], device=vectors.device)
    try:
        flagged = apply_into(translator, vectors, translated, precision=precision)
    except AnchorageError:
        check_vectors(vectors)  # names all rows, not only those of one step
        raise
    return TranslatedRows(translated, *(flagged or no_flags(len(vectors))))


@lru_cache(maxsize=64)
def no_flags(count: int) -> RowFlags:
    """Of so many rows none is at the mean, and none outside; nobody writes to these."""
    none = torch.zeros(count, dtype=torch.bool)
    return none, none


def apply_into(
    translator: Translator,
    vectors: Float[Tensor, "n dx"],
    out: Float32[Tensor, "n dy"],
    *,
    precision: ProductPrecision = "float32",
) -> RowFlags | None:
    """`apply`, written to `out` (n, d_y), of vectors whose shape is right; at one thread of torch it is as fast as the product.

    precision  "bfloat16": the product is of bfloat16 numbers, for processors that multiply them faster; what it would leave
               doubtful is done in float32
    Returns which rows (n,) are at the mean, and outside; None: none is. Raises NonFinite, OutOfRange: of rows of one step only.
    """
    count = vectors.shape[0]
    if count <= ROWS_PER_STEP or out.device.type != "cpu":  # a GPU has no use for steps
        return _step(translator, vectors, out, precision)
    flagged: RowFlags | None = None
    for start in range(0, count, ROWS_PER_STEP):
        rows = slice(start, min(start + ROWS_PER_STEP, count))
        try:
            found = _step(translator, vectors[rows], out[rows], precision)
        except AnchorageError as error:
            raise error.shifted(start) from None
        if found is not None:
            flagged = flagged or (
                torch.zeros(count, dtype=torch.bool),
                torch.zeros(count, dtype=torch.bool),
            )
            flagged[0][rows], flagged[1][rows] = found
    return flagged


def _step(
    translator: Translator,
    vectors: Float[Tensor, "n dx"],
    out: Float32[Tensor, "n dy"],
    precision: ProductPrecision,
) -> RowFlags | None:
    if _fast_step(translator, vectors, out, precision):
        return None
    careful = _careful_step(translator, vectors)
    out.copy_(careful.vectors)
    return careful.at_mean, careful.outside


def _fast_step(
    translator: Translator,
    vectors: Float[Tensor, "n dx"],
    out: Float32[Tensor, "n dy"],
    precision: ProductPrecision,
) -> bool:
    """Translate rows where nothing is delicate; False, and nothing of worth in `out`, when something might be.

    Nothing is when every row is finite, well away from the mean, and its product well above what rounding alone could make.
    """
    if vectors.shape[0] == 1 and precision == "float32" and out.device.type == "cpu":
        with np.errstate(all="ignore"):  # what overflows is left to the careful way
            return _fast_row(translator, vectors[0], out)
    decoder = translator.decoder
    centred = vectors.float() - translator.source_mean
    norms = torch.linalg.vector_norm(centred, dim=1)
    near, far = _shortest_and_longest(norms)
    if not (translator.nearest <= near and far <= SAFE_FARTHEST):  # NaN is neither
        return False
    if precision == "float32":
        torch.mm(centred, decoder.matrix, out=out)
    else:
        out.copy_(centred.bfloat16() @ decoder.rounded)
    lengths = torch.linalg.vector_norm(out, dim=1)
    short, long = _shortest_and_longest(lengths)
    noise: float = (
        NOISE_ROUNDINGS
        * UNIT_ROUNDOFF[precision]
        * (far * far * decoder.most_energy + translator.offset) ** 0.5
    )
    if not (short > noise and short >= SAFE_NEAREST and long <= SAFE_FARTHEST):
        return False
    # What a row is scaled by is at most this: s_y / its length, and by how much its norm is kept.
    stretch = 1.0 if translator.kept_scale is None else far / translator.kept_scale
    if not decoder.scale * stretch * (1.0 if decoder.renormalise else long / near) <= LARGEST_MAGNITUDE:
        return False
    factor = (lengths if decoder.renormalise else norms).reciprocal_().mul_(decoder.scale)
    if translator.kept_scale is not None:
        factor *= torch.linalg.vector_norm(centred, dim=1).div_(translator.kept_scale)
    torch.addcmul(decoder.mean, out, factor[:, None], out=out)
    return True


def _fast_row(
    translator: Translator, vector: Float[Tensor, " dx"], out: Float32[Tensor, "1 dy"]
) -> bool:
    """`_plain_step` of one row, in numpy: it takes half of the time there, as torch multiplies a row as if it were many."""
    decoder, rows = translator.decoder, translator.arrays
    centred = vector.numpy().astype(np.float32)
    centred -= rows.source_mean
    norm = math.sqrt(centred.dot(centred))
    if not translator.nearest <= norm <= SAFE_FARTHEST:
        return False
    made = out.numpy()[0]
    np.dot(centred, rows.matrix, out=made)
    length = math.sqrt(made.dot(made))
    noise = (
        NOISE_ROUNDINGS
        * UNIT_ROUNDOFF["float32"]
        * math.sqrt(norm * norm * decoder.most_energy + translator.offset)
    )
    if not (length > noise and SAFE_NEAREST <= length <= SAFE_FARTHEST):
        return False
    factor = decoder.scale / (length if decoder.renormalise else norm)
    if translator.kept_scale is not None:
        factor *= norm / translator.kept_scale
    if not factor * length <= LARGEST_MAGNITUDE:
        return False
    made *= factor
    made += rows.target_mean
    return True


def _shortest_and_longest(lengths: Float32[Tensor, " n"]) -> tuple[float, float]:
    """The shortest and the longest; NaN if one is."""
    low, high = lengths.aminmax()
    return low.item(), high.item()


def _careful_step(translator: Translator, vectors: Float[Tensor, "n dx"]) -> TranslatedRows:
    """Any rows whatever: NaN refused, tiny and huge ones scaled first, those without a direction told from those with one."""
    check_vectors(vectors)
    unit, norms = normalise(vectors.float(), translator.source_mean)
    at_mean = norms == 0
    # What the rounding of x - m, relative to m, adds to the rounding of n(x) itself.
    carried = translator.offset / torch.where(at_mean, 1.0, norms).square()
    stretch = (
        None if translator.kept_scale is None else (norms.double() / translator.kept_scale).float()
    )
    translated, known = decode_coordinates(translator.decoder, unit, carried.float(), stretch)
    if stretch is not None and (
        far := (~translated.isfinite().all(dim=1)).nonzero().flatten().tolist()
    ):
        raise OutOfRange(
            f"{len(far)} vectors are too far from the mean to keep their norm in float32", rows=far
        )
    return TranslatedRows(translated, at_mean, ~known & ~at_mean)


def decode_coordinates(
    decoder: Decoder,
    coordinates: Float32[Tensor, "n m"],
    more: Float32[Tensor, " *n"],
    stretch: Float32[Tensor, " n"] | None = None,
) -> tuple[Float32[Tensor, "n dy"], Bool[Tensor, " n"]]:
    """s_y * r'(c M) + m_y, the one product that serving pays for, and which rows (n,) it says anything about.

    A product no longer than the rounding of its coordinates can make it, 8 eps sqrt(sum_i c_i^2 |M_i|^2 + more), is noise, and
    counts as zero.

    more     (n,), or one for all: squared error that the coordinates bring along, in units of eps
    stretch  (n,) by how much each row is longer than usual; None: not at all
    """
    product = coordinates @ decoder.matrix
    lengths = row_norms(product)
    rounding = NOISE_ROUNDINGS * torch.finfo(torch.float32).eps
    known = lengths > rounding * (coordinates.square() @ decoder.energy + more).sqrt()
    if decoder.renormalise:
        product = unit_rows(product, torch.where(known, lengths, 0.0))
    if stretch is not None:
        product = product.mul_(torch.where(known, stretch, 0.0)[:, None])
    return product.mul_(decoder.scale).add_(decoder.mean), known


def content_hash(translator: Translator) -> str:
    """SHA-256 of everything `apply` depends on, as 32 hexadecimal digits: equal hashes translate alike."""
    decoder = translator.decoder
    digest = hashlib.sha256(
        f"{decoder.scale!r} {decoder.renormalise} {list(translator.dims)}".encode()
    )
    if translator.kept_scale is not None:
        digest.update(f" {translator.kept_scale!r}".encode())
    for tensor in (translator.source_mean, decoder.matrix, decoder.mean):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
