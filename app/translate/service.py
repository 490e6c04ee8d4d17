"""Applies a map to the vectors of a request: a translation, a relation or a decoding.

`Translation`, `Relation` and `Decoding` say which map a request wants; `ServedMap` is that map,
ready to apply. After the first request for a map its names alone find it: no SQL, no Redis, no fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from anyio import to_thread
from torch import Tensor

from app.anchors import spaces
from app.context import Limits, Services
from app.db import tables
from app.db.cache import Key, TensorCodec, dataclass_codec
from app.db.name_cache import NameKey
from app.encoders import encoding, incoming
from app.encoders.encoding import Inputs
from app.errors import AnchorageError, InvalidOption, UnknownOption, blaming
from app.maths.geometry.space import check_vectors
from app.maths.quality.cost import fit_seconds
from app.maths.translators import decoder, linear, methods
from app.maths.translators import translator as maths
from app.maths.translators.decoder import Decoder, TranslatedRows
from app.maths.translators.translator import ProductPrecision, RowFlags, Translator, relate_into
from app.request_context import RequestContext
from app.translate import fit as translators
from app.translate import fit_queue, warnings
from app.translate.decoding import resolve_decoding
from app.translate.fit import FittedTranslator, SpacePair
from app.translate.warnings import AnswerWarning

DECODER = dataclass_codec(Decoder)
MATRIX: TensorCodec[Tensor] = TensorCodec(
    dump=lambda matrix: {"matrix": matrix}, load=lambda tensors: tensors["matrix"]
)

#: the method of a translation into the source's own space, which `auto` serves without a fit
IDENTITY = "identity"

#: most maps that a pair of spaces remembers
MAX_MAPS = 1_000

#: most multiplications of a product that the caller's thread computes at once
INLINE_MULTIPLICATIONS = 2**23

#: most multiplications of a step in a lane, some tens of milliseconds, where its rows may be fewer
STEP_MULTIPLICATIONS = 2**29

#: fewest rows of a step in a lane: a product of fewer reads the matrix too often
FEWEST_ROWS_PER_STEP = 48


# --- what a request wants -------------------------------------------------------------------------


@dataclass(frozen=True)
class Translation:
    """Maps vectors of the source encoder into the target's space."""

    request: translators.FitRequest
    #: whether it refuses a translator below the request's minimum
    enforces: bool = True

    #: the request's field of its vectors
    reads: ClassVar[str] = "vectors"

    @cached_property
    def key(self) -> Key:
        return ("translate", self.enforces, *self.request.key)

    def name(self, project: str) -> NameKey:
        """The name of the spaces that it needs."""
        return _pair_name(project, self.request)

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """The space whose vectors it reads, and the dimensions of its input and output."""
        source, target = pair.both
        return source, source.encoder.dim, target.encoder.dim

    def make(self, services: Services, context: RequestContext, pair: SpacePair) -> ServedMap:
        """Raises the option errors, QualityBelowMinimum, and Conflict when a space was deleted
        meanwhile.
        """
        source, target = pair.both
        if source.id == target.id and self.request.method == "auto":
            translators.check_options(self.request, anchors=source.anchor_set.size)
            dim = source.encoder.dim
            about = (warnings.warn_of_identity(source),)
            return ServedMap(
                _copy_rows, (dim, dim), method=IDENTITY, options={}, pair=pair.both, warnings=about
            )
        about_pair = warnings.warnings_about_pair(services, source, target)
        fitted = translators.fit(services, context, source, target, self.request)
        if self.enforces:
            translators.enforce_minimum(services, context, fitted, pair, self.request)
        return serve_translator(fitted, pair.both, about_pair)


@dataclass(frozen=True)
class Relation:
    """Maps vectors to their coordinates relative to the anchors, n(x) E.

    encode_power, ridge  power 0 gives the paper's cosines, which have no ridge
    """

    encoder: str
    anchor_set: str
    encode_power: float = 0.0
    ridge: float | None = None

    reads: ClassVar[str] = "vectors"

    @property
    def key(self) -> Key:
        return ("relative", self.encoder, self.anchor_set, self.encode_power, self.ridge)

    def name(self, project: str) -> NameKey:
        """The name of the space that it needs."""
        return translators.pair_name(project, self.anchor_set, self.encoder, None)

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """As `Translation.sides`. Raises UnknownOption."""
        assert pair.source is not None
        if self.encode_power == 0 and self.ridge is not None:
            raise UnknownOption(
                "`ridge` only applies to an `encode_power` above 0. Remove it, or set "
                "`encode_power`.",
                field="ridge",
            )
        return pair.source, pair.source.encoder.dim, pair.source.anchor_set.size

    def make(self, services: Services, context: RequestContext, pair: SpacePair) -> ServedMap:
        """Raises UnknownOption and InvalidOption."""
        row, *dims = self.sides(pair)
        fitted = spaces.fitted_space(services, row)
        key: Key = ("projector", row.blob, self.encode_power, self.ridge)

        def make_projector() -> Tensor:
            with services.take(services.turns.fits, row.project):
                made = linear.projector(
                    fitted.unit, power=self.encode_power, ridge=self.ridge, noise=fitted.noise
                )
            return made.float().contiguous()

        try:
            projector = services.cache.get_or_make(
                key, make_projector, lambda matrix: matrix.nbytes, shared=MATRIX
            )
        except InvalidOption as error:
            error.field = (error.field or "encode_power").removeprefix("options.")
            raise
        return ServedMap(
            _relate_rows,
            (dims[0], dims[1]),
            keys=(key, spaces.space_key(row)),
            parts=(projector, fitted),
        )


@dataclass(frozen=True)
class Decoding:
    """Maps relative vectors, encoded with `relative_power`, into the target's space.

    The method must not depend on the source.
    """

    request: translators.FitRequest
    relative_power: float = 0.0

    reads: ClassVar[str] = "relative"

    @cached_property
    def key(self) -> Key:
        return ("decode", *self.request.key, self.relative_power)

    def name(self, project: str) -> NameKey:
        """The name of the spaces that it needs. A source, if named, must exist too."""
        return _pair_name(project, self.request)

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """As `Translation.sides`."""
        assert pair.target is not None
        return pair.target, pair.target.anchor_set.size, pair.target.encoder.dim

    def make(self, services: Services, context: RequestContext, pair: SpacePair) -> ServedMap:
        """Raises MethodNotIndependent, UnknownOption, and InvalidOption for a power that the method
        cannot decode.
        """
        target, *dims = self.sides(pair)
        method, options = resolve_decoding(
            self.request, self.relative_power, anchors=target.anchor_set.size
        )
        # Only a kernel depends on the space whose cosines it decodes.
        source = pair.source if methods.METHODS[method].core is None else None
        key: Key = ("decoder", target.blob, method, translators.canonical_json(options))
        if source is not None:
            key = (*key, source.blob)

        def fit() -> Decoder:
            y = spaces.fitted_space(services, target)
            x = None if source is None else spaces.fitted_space(services, source)
            with services.take(services.turns.fits, target.project):
                return methods.fit_decoder(method, y, options, source=x)

        seconds = fit_seconds(method, dims[0], (dims[1], dims[1]), options)
        made = fit_queue.make_or_queue(
            services,
            context,
            fit_queue.Fit(
                self.request,
                seconds,
                key,
                fit,
                DECODER,
                self.relative_power,
            ),
        )
        hidden = ("encode_power", "keep_norms")
        return ServedMap(
            _decode_rows,
            (dims[0], dims[1]),
            keys=(key,),
            parts=(made,),
            reads=self.reads,
            method=method,
            options={name: value for name, value in options.items() if name not in hidden},
            warnings=warnings.warnings_about_target(target),
        )


MapRequest = Translation | Relation | Decoding


def _pair_name(project: str, request: translators.FitRequest) -> NameKey:
    return NameKey(project, translators.PAIR, (request.anchor_set, request.source, request.target))


# --- the map, and its product ---------------------------------------------------------------------


#: maps vectors into a tensor by the parts of a map; returns the flags of rows, None for none
MapRows = Callable[[Sequence[Any], Tensor, Tensor, ProductPrecision], RowFlags | None]


@dataclass(slots=True, eq=False)
class ServedMap:
    """A map that is ready to apply, and how it was made.

    rows      maps rows, by the parts. Raises NonFinite and OutOfRange
    dims      of its input and of its output
    keys, parts  the tensors of the map, and their keys in the cache, which limits their memory
    multiplications  of one row; None: those of one matrix
    reads     the request's field that holds its vectors
    method, options  of a translation or a decoding
    id, pair  of a translation: its translator's public id, and its two spaces
    warnings  about every answer of the map
    """

    rows: MapRows
    dims: tuple[int, int]
    keys: tuple[Key, ...] = ()
    parts: Sequence[Any] = ()
    multiplications: int | None = None
    reads: str = "vectors"
    method: str | None = None
    options: methods.Options | None = None
    id: str | None = None
    pair: tuple[tables.SpaceRow, tables.SpaceRow] | None = None
    warnings: Sequence[AnswerWarning] = ()

    @property
    def translator(self) -> Translator | None:
        """The translator of a translation; None for the identity and for other maps."""
        return None if self.id is None else self.parts[0]

    def start(
        self,
        services: Services,
        vectors: Tensor,
        precision: ProductPrecision = "float32",
    ) -> MappedVectors:
        """Start mapping vectors of the right shape.

        A small product is computed here, and raises NonFinite and OutOfRange here.
        """
        count, (reads, makes) = vectors.shape[0], self.dims
        out = torch.empty(count, makes)
        multiplications = self.multiplications or reads * makes
        if count * multiplications <= INLINE_MULTIPLICATIONS:
            try:
                flagged = self.rows(self.parts, vectors, out, precision)
            except AnchorageError as error:
                raise _error_of_all_rows(error, vectors) from None
            output = TranslatedRows(out, *(flagged or maths.no_flags(count)))
            return MappedVectors(output, self, vectors)
        at_mean = torch.zeros(count, dtype=torch.bool)
        outside = torch.zeros(count, dtype=torch.bool)

        def span(start: int, stop: int) -> None:
            flagged = self.rows(self.parts, vectors[start:stop], out[start:stop], precision)
            if flagged is not None:
                at_mean[start:stop], outside[start:stop] = flagged

        # A few rows are divided among the lanes too: alone, a request should use every core.
        share = max(FEWEST_ROWS_PER_STEP, -(-count // services.lanes.count))
        most = max(FEWEST_ROWS_PER_STEP, STEP_MULTIPLICATIONS // multiplications)
        future = services.lanes.submit(span, count, min(share, most, maths.ROWS_PER_STEP))
        return MappedVectors(TranslatedRows(out, at_mean, outside), self, vectors, future=future)


@dataclass(frozen=True, slots=True, eq=False)
class MappedVectors:
    """The output of a map, the map, and the vectors that it read.

    truncated  rows of the inputs that the encoder read only in part
    future     ends when `output` is complete; None: it is
    """

    output: TranslatedRows
    served: ServedMap
    vectors: Tensor
    truncated: Sequence[int] = ()
    future: Future[None] | None = None

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


def serve_translator(
    fitted: FittedTranslator,
    pair: tuple[tables.SpaceRow, tables.SpaceRow],
    about_pair: Sequence[AnswerWarning] = (),
) -> ServedMap:
    """Return the map of a fitted translator."""
    return ServedMap(
        _translate_rows,
        fitted.translator.dims,
        keys=(fitted.key,),
        parts=(fitted.translator,),
        multiplications=fitted.translator.multiplications,
        method=fitted.method,
        options=fitted.options,
        id=fitted.id,
        pair=pair,
        warnings=about_pair,
    )


def _translate_rows(
    parts: Sequence[Any], vectors: Tensor, out: Tensor, precision: ProductPrecision
) -> RowFlags | None:
    return maths.apply_into(parts[0], vectors, out, precision=precision)


def _copy_rows(
    parts: Sequence[Any], vectors: Tensor, out: Tensor, precision: ProductPrecision
) -> RowFlags | None:
    check_vectors(vectors)
    out.copy_(vectors)
    return None


def _relate_rows(
    parts: Sequence[Any], vectors: Tensor, out: Tensor, precision: ProductPrecision
) -> RowFlags | None:
    """Relate the rows. No row is outside."""
    projector, space = parts
    at_mean = relate_into(projector, space.mean.float(), vectors, out)
    return at_mean, torch.zeros_like(at_mean)


def _decode_rows(
    parts: Sequence[Any], vectors: Tensor, out: Tensor, precision: ProductPrecision
) -> RowFlags | None:
    done = decoder.decode(parts[0], vectors)
    out.copy_(done.vectors)
    return done.at_mean, done.outside


def _error_of_all_rows(error: AnchorageError, vectors: Tensor) -> AnchorageError:
    """The error of all rows, for an error that a part of the rows raised."""
    try:
        check_vectors(vectors)
    except AnchorageError as error_of_all:
        return error_of_all
    return error


# --- finding and applying -------------------------------------------------------------------------


def find_map(
    services: Services, project: str, request: MapRequest, pair: SpacePair | None = None
) -> ServedMap | None:
    """Return the map without IO; None if it is not in memory or its names must be looked up."""
    if pair is None:
        pair = services.names.find(request.name(project))
    remembered: ServedMap | None = None if pair is None else pair.maps.get(request.key)
    if remembered is None:
        return None
    parts = [services.cache.find(key) for key in remembered.keys]
    return None if any(part is None for part in parts) else replace(remembered, parts=parts)


def prepare_map(
    services: Services,
    context: RequestContext,
    request: MapRequest,
    pair: SpacePair | None = None,
) -> ServedMap:
    """Return the map, from memory or fitted now."""
    pair = pair or translators.resolve(services, request.name(context.project))
    served = find_map(services, context.project, request, pair)
    if served is None:
        served = request.make(services, context, pair)
        if len(pair.maps) >= MAX_MAPS:
            pair.maps.clear()
        pair.maps[request.key] = replace(served, parts=())
    return served


def apply_map(
    services: Services,
    context: RequestContext,
    request: MapRequest,
    *,
    vectors: Tensor | None,
    inputs: Inputs | None = None,
    number_bytes: int = incoming.ANSWER_NUMBER_BYTES,
    precision: ProductPrecision = "float32",
    pair: SpacePair | None = None,
) -> MappedVectors:
    """Apply the map to vectors or inputs, which are checked before a fit.

    number_bytes  of each number in the answer
    pair          the spaces of the request, if the caller has found them

    Raises the not-found, option and vector errors, MethodNotIndependent, Conflict, and the errors
    of `encode`.
    """
    pair = pair or translators.resolve(services, request.name(context.project))
    space, reads, makes = request.sides(pair)
    field, count = encoding.exactly_one(vectors, inputs, field=request.reads)
    incoming.reserve_answer(services, context, field, count, dim=makes, number_bytes=number_bytes)
    read = encoding.vectors_or_encoded(
        services, context, space.encoder, vectors, inputs, field=request.reads, dim=reads
    )
    served = prepare_map(services, context, request, pair)
    with blaming(field):
        mapped = served.start(services, read.vectors, precision=precision)
        mapped.result()
    if inputs is not None and (about := warnings.warnings_about_change(space.encoder)):
        served = replace(served, warnings=[*served.warnings, *about])
    return replace(mapped, served=served, truncated=read.truncated)


async def serve_map(
    services: Services,
    context: RequestContext,
    request: MapRequest,
    vectors: Tensor | None,
    inputs: Inputs | None = None,
    number_bytes: int = incoming.ANSWER_NUMBER_BYTES,
    precision: ProductPrecision = "float32",
) -> MappedVectors:
    """Apply the map: at once if it is in memory and the vectors fit, else in a thread.

    Raises the errors of `apply_map`.
    """
    served = None if inputs is not None else find_map(services, context.project, request)
    if served is None or vectors is None or not _fits(vectors, served, services.limits):
        work = partial(
            apply_map,
            services,
            context,
            request,
            vectors=vectors,
            inputs=inputs,
            number_bytes=number_bytes,
            precision=precision,
        )
        return await to_thread.run_sync(work)
    count, (_, makes) = len(vectors), served.dims
    context.reserve_bytes(count * makes * number_bytes)
    try:
        mapped = served.start(services, vectors, precision=precision)
        await mapped.wait()
        mapped.result()
    except AnchorageError as error:
        error.field = error.field or served.reads
        raise
    return mapped


def _fits(vectors: Tensor, served: ServedMap, limits: Limits) -> bool:
    """Whether neither the vectors' shape nor the size of the answer is refused."""
    count, (reads, makes) = vectors.shape[0], served.dims
    most = min(limits.vectors, limits.numbers // makes)
    return 0 < count <= most and vectors.shape[1] == reads
