"""The matrix products of requests: small ones in the caller's thread, others in the lanes."""

from __future__ import annotations

import asyncio
import logging
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
from app.maths.translators.translator import ProductPrecision, RowFlags, Translator, relate_into
from app.services.context import DeviceAway, Services, TranslationDevice
from app.services.lanes import Lanes

log = logging.getLogger("anchorage.serving")

#: most multiplications of a product that the caller's thread computes at once
INLINE_MULTIPLICATIONS = 2**23

#: most multiplications of a step in a lane, some tens of milliseconds, where its rows may be fewer
STEP_MULTIPLICATIONS = 2**29

#: fewest rows of a step in a lane: a product of fewer reads the matrix too often
FEWEST_ROWS_PER_STEP = 48

#: most rows whose bfloat16 translations are compared with float32's
COMPARED_ROWS = 64


@dataclass(slots=True, eq=False)
class Running:
    """A product that may still run. `future` ends when `output` is complete; None: it is now."""

    future: Future[None] | None
    output: TranslatedRows
    vectors: Tensor

    def result(self) -> TranslatedRows:
        """Wait for the output. Raises NonFinite and OutOfRange, which name all wrong rows."""
        if self.future is not None:
            try:
                self.future.result()
            except AnchorageError as error:
                raise _error_of_all_rows(error, self.vectors) from None
        return self.output

    async def wait(self) -> None:
        """Wait on the event loop. Raises nothing: `result` does."""
        if self.future is not None:
            with suppress(Exception):  # retrieved here, or asyncio would log it
                await asyncio.wrap_future(self.future)


class Product(Protocol):
    """A map that is applied row by row. `dims` are those of its input and output."""

    @property
    def dims(self) -> tuple[int, int]: ...

    @property
    def multiplications(self) -> int:
        """Those of one row."""
        ...

    def apply_rows(
        self, vectors: Tensor, out: Tensor, precision: ProductPrecision
    ) -> RowFlags | None:
        """Map the rows into `out`; return their flags, None for none.

        Raises NonFinite, OutOfRange.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TranslateProduct:
    """Maps vectors into another encoder's space."""

    translator: Translator
    #: the translator's public id, by which a device knows it; None: it stays on the CPU
    id: str | None = None

    @property
    def dims(self) -> tuple[int, int]:
        return self.translator.dims

    @property
    def multiplications(self) -> int:
        return self.translator.multiplications

    def apply_rows(
        self, vectors: Tensor, out: Tensor, precision: ProductPrecision
    ) -> RowFlags | None:
        return maths.apply_into(self.translator, vectors, out, precision=precision)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceProduct:
    """Translates on a device, or on the CPU when the device cannot."""

    on_cpu: TranslateProduct
    device: TranslationDevice

    @property
    def dims(self) -> tuple[int, int]:
        return self.on_cpu.dims

    @property
    def multiplications(self) -> int:
        return self.on_cpu.multiplications

    def apply_rows(
        self, vectors: Tensor, out: Tensor, precision: ProductPrecision
    ) -> RowFlags | None:
        id, translator = self.on_cpu.id, self.on_cpu.translator
        assert id is not None
        try:
            return self.device.translate(id, translator, vectors, out)
        except DeviceAway as reason:
            log.warning("%d vectors are translated on the CPU: %s", len(vectors), reason)
            return self.on_cpu.apply_rows(vectors, out, precision)


@dataclass(frozen=True, slots=True, eq=False)
class IdentityProduct:
    """Returns vectors of the right dimension as they are, in float32."""

    dim: int

    @property
    def dims(self) -> tuple[int, int]:
        return self.dim, self.dim

    @property
    def multiplications(self) -> int:
        return self.dim * self.dim  # as a matrix: its rows are read and written too

    def apply_rows(
        self, vectors: Tensor, out: Tensor, precision: ProductPrecision
    ) -> RowFlags | None:
        check_vectors(vectors)
        out.copy_(vectors)
        return None


@dataclass(frozen=True, slots=True, eq=False)
class RelateProduct:
    """Maps vectors to relative vectors, rounded to a grid of `bits`. No row is outside."""

    projector: Tensor
    mean: Tensor
    bits: int | None = None

    @property
    def dims(self) -> tuple[int, int]:
        return self.projector.shape[0], self.projector.shape[1]

    @property
    def multiplications(self) -> int:
        return self.projector.numel()

    def apply_rows(
        self, vectors: Tensor, out: Tensor, precision: ProductPrecision
    ) -> RowFlags | None:
        at_mean = relate_into(self.projector, self.mean, vectors, out)
        if self.bits is not None:
            quantise_in_place(out, bits=self.bits)
        return at_mean, torch.zeros_like(at_mean)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeProduct:
    """Maps relative vectors into an encoder's space."""

    decoder: Decoder

    @property
    def dims(self) -> tuple[int, int]:
        return self.decoder.matrix.shape[0], self.decoder.matrix.shape[1]

    @property
    def multiplications(self) -> int:
        return self.decoder.matrix.numel()

    def apply_rows(
        self, vectors: Tensor, out: Tensor, precision: ProductPrecision
    ) -> RowFlags | None:
        done = decoder.decode(self.decoder, vectors)
        out.copy_(done.vectors)
        return done.at_mean, done.outside


def begin(
    services: Services,
    product: Product,
    vectors: Tensor,
    out: Tensor | None = None,
    precision: ProductPrecision = "float32",
) -> Running:
    """Start applying the product to vectors of the right shape.

    out  float32, or float16 rounded from it; None: a new tensor

    A small product is computed here, and raises NonFinite and OutOfRange here.
    """
    count, dims = vectors.shape[0], product.dims
    if out is None:
        out = torch.empty(count, dims[1])
    # torch would write into another tensor, with a warning.
    if (vectors.shape[1], *out.shape) != (dims[0], count, dims[1]):
        raise ValueError(f"{tuple(vectors.shape)} into {tuple(out.shape)} by {dims}")
    if count * product.multiplications <= INLINE_MULTIPLICATIONS:
        try:
            flagged = _apply_rows(product, vectors, out, precision)
        except AnchorageError as error:
            raise _error_of_all_rows(error, vectors) from None
        return Running(None, TranslatedRows(out, *(flagged or maths.no_flags(count))), vectors)
    product, lanes, step = _place(services, product, vectors, precision)
    at_mean, outside = torch.zeros(count, dtype=torch.bool), torch.zeros(count, dtype=torch.bool)

    def span(start: int, stop: int) -> None:
        flagged = _apply_rows(product, vectors[start:stop], out[start:stop], precision)
        if flagged is not None:
            at_mean[start:stop], outside[start:stop] = flagged

    future = lanes.submit(span, count, step)
    return Running(future, TranslatedRows(out, at_mean, outside), vectors)


def _place(
    services: Services, product: Product, vectors: Tensor, precision: ProductPrecision
) -> tuple[Product, Lanes, int]:
    """Return where the product runs, the threads that compute it or wait for it, and the rows of a
    step.
    """
    device, count = services.translation_device, len(vectors)
    if (
        device is not None
        and isinstance(product, TranslateProduct)
        and product.id is not None
        and precision == "float32"
        and device.pays(product.translator, vectors)
    ):
        return DeviceProduct(product, device), device.lanes, count
    # A few rows are divided among the lanes too: alone, a request should use every core.
    share = max(FEWEST_ROWS_PER_STEP, -(-count // services.lanes.count))
    most = max(FEWEST_ROWS_PER_STEP, STEP_MULTIPLICATIONS // product.multiplications)
    return product, services.lanes, min(share, most, maths.ROWS_PER_STEP)


def precision_error(translator: Translator, vectors: Tensor, out: Tensor) -> dict[str, float]:
    """How far translations lie from those in float32, over some of the rows.

    Errors are relative to the translation's distance from the target's mean.
    """
    places = torch.linspace(0, len(vectors) - 1, min(COMPARED_ROWS, len(vectors))).long()
    exact = maths.apply(translator, vectors[places]).vectors.double()
    lengths = (
        (exact - translator.decoder.mean).norm(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
    )
    errors = (out[places].double() - exact).norm(dim=1) / lengths
    return {"mean": float(errors.mean()), "largest": float(errors.max()), "rows": len(places)}


def _error_of_all_rows(error: AnchorageError, vectors: Tensor) -> AnchorageError:
    """The error of all rows, for an error that a part of the rows raised."""
    try:
        check_vectors(vectors)
    except AnchorageError as error_of_all:
        return error_of_all
    return error


def _apply_rows(
    product: Product, vectors: Tensor, out: Tensor, precision: ProductPrecision
) -> RowFlags | None:
    """Map the rows into `out`. Raises OutOfRange for numbers that float16 cannot hold."""
    if out.dtype is torch.float32:
        return product.apply_rows(vectors, out, precision)
    exact = torch.empty(out.shape)
    flagged = product.apply_rows(vectors, exact, precision)
    out.copy_(exact)
    refuse_overflow(~out.isfinite().all(dim=1))
    return flagged


def refuse_overflow(overflowing: Tensor, field: str | None = None) -> None:
    """Raises OutOfRange for the rows (n,) that float16 cannot hold."""
    wrong = overflowing.nonzero().flatten().tolist()
    if wrong:
        detail = f"{len(wrong)} rows have numbers beyond 65504, the most of float16. Use float32"
        raise OutOfRange(detail, field=field, rows=wrong)
