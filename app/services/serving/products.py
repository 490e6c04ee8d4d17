"""The matrix products of requests: small ones where they are asked for, others in the lanes."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from app.errors import AnchorageError, OutOfRange
from app.maths.geometry.quantise import quantise_in_place
from app.maths.geometry.space import check_vectors
from app.maths.translators import decoder
from app.maths.translators import translator as maths
from app.maths.translators.decoder import Decoder, TranslatedRows
from app.maths.translators.relative import relate_into
from app.maths.translators.translator import ProductPrecision, RowFlags, Translator
from app.services.context import Services

#: multiplications of a product that takes no longer than handing it to another thread
SMALL = 2**23

#: rows whose bfloat16 translations are compared with float32's
COMPARED = 64


@dataclass(slots=True, eq=False)
class Running:
    """A product on its way; `future` ends when `made` is whole, and is None where that is so already."""

    future: Future[None] | None
    made: TranslatedRows
    vectors: Tensor

    def result(self) -> TranslatedRows:
        """Wait for it. Raises NonFinite, OutOfRange, naming all rows."""
        if self.future is not None:
            try:
                self.future.result()
            except AnchorageError as error:
                raise _of_all_rows(error, self.vectors) from None
        return self.made

    async def wait(self) -> None:
        """Let others run until it is there; what it raised, `result` raises."""
        if self.future is not None:
            with suppress(Exception):  # read here, or asyncio would log that nobody did
                await asyncio.wrap_future(self.future)


class Product(Protocol):
    """A map that is applied row by row. `dims`: of what it reads and of what it makes."""

    @property
    def dims(self) -> tuple[int, int]: ...

    def rows(self, vectors: Tensor, made: Tensor, precision: ProductPrecision) -> RowFlags | None:
        """Write what the rows become to `made`; None: no row is flagged. Raises NonFinite, OutOfRange."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TranslateProduct:
    """Vectors into another encoder's space."""

    translator: Translator

    @property
    def dims(self) -> tuple[int, int]:
        return self.translator.dims

    def rows(self, vectors: Tensor, made: Tensor, precision: ProductPrecision) -> RowFlags | None:
        return maths.apply_into(self.translator, vectors, made, precision=precision)


@dataclass(frozen=True, slots=True, eq=False)
class RelateProduct:
    """Vectors into relative ones, put on a grid where `bits` says so; no row is outside the anchors."""

    projector: Tensor
    mean: Tensor
    bits: int | None = None

    @property
    def dims(self) -> tuple[int, int]:
        return self.projector.shape[0], self.projector.shape[1]

    def rows(self, vectors: Tensor, made: Tensor, precision: ProductPrecision) -> RowFlags | None:
        at_mean = relate_into(self.projector, self.mean, vectors, made)
        if self.bits is not None:
            quantise_in_place(made, bits=self.bits)
        return at_mean, torch.zeros_like(at_mean)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeProduct:
    """Relative vectors into an encoder's space."""

    decoder: Decoder

    @property
    def dims(self) -> tuple[int, int]:
        return self.decoder.matrix.shape[0], self.decoder.matrix.shape[1]

    def rows(self, vectors: Tensor, made: Tensor, precision: ProductPrecision) -> RowFlags | None:
        done = decoder.decode(self.decoder, vectors)
        made.copy_(done.vectors)
        return done.at_mean, done.outside


def begin(
    services: Services,
    product: Product,
    vectors: Tensor,
    out: Tensor | None = None,
    precision: ProductPrecision = "float32",
) -> Running:
    """Begin to apply the product to vectors whose shape is right, into `out`: float32, or float16 rounded from it.

    A small product is done at once, and raises what is wrong at once: NonFinite, OutOfRange.
    """
    count, dims = vectors.shape[0], product.dims
    if out is None:
        out = torch.empty(count, dims[1])
    if (vectors.shape[1], *out.shape) != (
        dims[0],
        count,
        dims[1],
    ):  # torch would write it elsewhere, with a warning
        raise ValueError(f"{tuple(vectors.shape)} into {tuple(out.shape)} by {dims}")
    if count * dims[0] * dims[1] <= SMALL:
        try:
            flagged = _rounded(product, vectors, out, precision)
        except AnchorageError as error:
            raise _of_all_rows(error, vectors) from None
        return Running(None, TranslatedRows(out, *(flagged or maths.no_flags(count))), vectors)
    at_mean, outside = torch.zeros(count, dtype=torch.bool), torch.zeros(count, dtype=torch.bool)

    def span(start: int, stop: int) -> None:
        flagged = _rounded(product, vectors[start:stop], out[start:stop], precision)
        if flagged is not None:
            at_mean[start:stop], outside[start:stop] = flagged

    future = services.lanes.submit(span, count, maths.ROWS_PER_STEP)
    return Running(future, TranslatedRows(out, at_mean, outside), vectors)


def precision_error(translator: Translator, vectors: Tensor, made: Tensor) -> dict[str, float]:
    """How far translations lie from those in float32, as part of their distance from the target's mean, over some of the rows."""
    places = torch.linspace(0, len(vectors) - 1, min(COMPARED, len(vectors))).long()
    exact = maths.apply(translator, vectors[places]).vectors.double()
    lengths = (
        (exact - translator.decoder.mean).norm(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
    )
    errors = (made[places].double() - exact).norm(dim=1) / lengths
    return {"mean": float(errors.mean()), "largest": float(errors.max()), "rows": len(places)}


def _of_all_rows(error: AnchorageError, vectors: Tensor) -> AnchorageError:
    """What to raise for what a part of the rows raised: the same of all of them."""
    try:
        check_vectors(vectors)
    except AnchorageError as whole:
        return whole
    return error


def _rounded(
    product: Product, vectors: Tensor, out: Tensor, precision: ProductPrecision
) -> RowFlags | None:
    """What the rows become, in `out`. Raises OutOfRange where that is float16, and too small."""
    if out.dtype is torch.float32:
        return product.rows(vectors, out, precision)
    exact = torch.empty(out.shape)
    flagged = product.rows(vectors, exact, precision)
    out.copy_(exact)
    refuse_overflow(~out.isfinite().all(dim=1))
    return flagged


def refuse_overflow(beyond: Tensor, field: str | None = None) -> None:
    """Raises OutOfRange for the rows (n,) that float16 cannot hold."""
    wrong = beyond.nonzero().flatten().tolist()
    if wrong:
        detail = f"{len(wrong)} answers are beyond float16's largest number, 65504: ask for float32"
        raise OutOfRange(detail, field=field, rows=wrong)
