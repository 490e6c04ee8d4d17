"""The one object serving knows: translate(x) = s_y * r(n(x) T) + m_y. Fitting may be rich; applying is this page."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Float64
from torch import Tensor

from app.errors import OutOfRange
from app.maths.space import ROUNDINGS, Space, check_vectors, normalise, row_norms, unit_rows


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

    @property
    def dims(self) -> tuple[int, int]:
        return self.decoder.matrix.shape[0], self.decoder.matrix.shape[1]

    @property
    def nbytes(self) -> int:
        return self.source_mean.nbytes + self.decoder.nbytes


@dataclass(frozen=True, eq=False)
class Translated:
    """vectors  (n, d_y) in the target's units
    at_mean  (n,) rows that equal the source's mean: they have no direction, and became the target's mean
    outside  (n,) rows whose direction the anchors do not span: nothing is known of it, and they became the target's mean
    """

    vectors: Float32[Tensor, "n dy"]
    at_mean: Bool[Tensor, " n"]
    outside: Bool[Tensor, " n"]


def make_decoder(target: Space, matrix: Float64[Tensor, "m dy"], *, renormalise: bool = True) -> Decoder:
    """Round a fitted matrix and the target's statistics to float32, the precision of serving."""
    energy = matrix.square().sum(dim=1).float()
    return Decoder(matrix.float().contiguous(), energy, target.scale, target.mean.float(), renormalise)


def make_translator(
    source: Space, target: Space, matrix: Float64[Tensor, "dx dy"], *, renormalise: bool = True, keep_norms: bool = False
) -> Translator:
    """The translator that serves a fitted T (d_x, d_y), in float32."""
    decoder = make_decoder(target, matrix, renormalise=renormalise)
    return Translator(source.mean.float(), decoder, source.scale if keep_norms else None)


def decode(decoder: Decoder, relative: Float[Tensor, "n k"]) -> Translated:
    """s_y * r'(r D) + m_y for relative vectors r (n, k), float of any width, decoded in float32.

    A row of zeros is that of a vector equal to its own mean. Raises as `check_vectors`, and OutOfRange for rows so large that
    their product overflows.
    """
    check_vectors(relative, dim=decoder.matrix.shape[0])
    coordinates = relative.float()
    vectors, known = _finish(decoder, coordinates, torch.zeros(1))
    overflowed = (~vectors.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if overflowed:
        raise OutOfRange(f"{len(overflowed)} relative vectors are too large to decode in float32", rows=overflowed)
    at_mean = coordinates.abs().amax(dim=1) == 0
    return Translated(vectors, at_mean, ~known & ~at_mean)


def apply(translator: Translator, vectors: Float[Tensor, "n dx"]) -> Translated:
    """Translate vectors (n, d_x), in the source encoder's units and any float dtype, in float32.

    A vector equal to the source's mean, or outside what the anchors span, becomes the target's mean, and is flagged.
    Raises as `check_vectors`: EmptyVectors, DimensionMismatch, NonFinite, OutOfRange; the last also for vectors so far from the
    mean that keeping their norm overflows.
    """
    check_vectors(vectors, dim=translator.dims[0])
    unit, norms = normalise(vectors.float(), translator.source_mean)
    at_mean = norms == 0
    # What the rounding of x - m, relative to m, adds to the rounding of n(x) itself.
    offset = translator.source_mean.double().square() @ translator.decoder.energy.double()
    carried = offset / torch.where(at_mean, 1.0, norms).square()
    stretch = None if translator.kept_scale is None else (norms.double() / translator.kept_scale).float()
    translated, known = _finish(translator.decoder, unit, carried.float(), stretch)
    if stretch is not None and (far := (~translated.isfinite().all(dim=1)).nonzero().flatten().tolist()):
        raise OutOfRange(f"{len(far)} vectors are too far from the mean to keep their norm in float32", rows=far)
    return Translated(translated, at_mean, ~known & ~at_mean)


def _finish(
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
    rounding = ROUNDINGS * torch.finfo(torch.float32).eps
    known = lengths > rounding * (coordinates.square() @ decoder.energy + more).sqrt()
    if decoder.renormalise:
        product = unit_rows(product, torch.where(known, lengths, 0.0))
    if stretch is not None:
        product = product.mul_(torch.where(known, stretch, 0.0)[:, None])
    return product.mul_(decoder.scale).add_(decoder.mean), known


def content_hash(translator: Translator) -> str:
    """SHA-256 of everything `apply` depends on, as 32 hexadecimal digits: equal hashes translate alike."""
    decoder = translator.decoder
    digest = hashlib.sha256(f"{decoder.scale!r} {decoder.renormalise} {list(translator.dims)}".encode())
    if translator.kept_scale is not None:
        digest.update(f" {translator.kept_scale!r}".encode())
    for tensor in (translator.source_mean, decoder.matrix, decoder.mean):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
