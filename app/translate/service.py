"""Applies a map to the vectors of a request: a translation, a relation or a decoding.

`Translation`, `Relation` and `Decoding` say which map a request wants, and make it. After the first
request for a map its names alone find it: no SQL, no Redis, no fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

from anyio import to_thread
from torch import Tensor

from app.anchors import spaces
from app.context import ANSWER_NUMBER_BYTES, Limits, RequestContext, Services
from app.db import tables
from app.db.cache import Key, NameKey
from app.db.redis import dataclass_codec
from app.encoders import encoding, incoming
from app.encoders.models.base import Inputs
from app.errors import AnchorageError, InvalidOption, UnknownOption, blaming
from app.jobs.progress import Progress
from app.jobs.worker import JobResult
from app.maths.quality.cost import fit_seconds
from app.maths.translators import linear, methods
from app.maths.translators.decoder import Decoder, TranslatedRows
from app.translate import estimate, fit_queue, warnings
from app.translate import fit as translators
from app.translate.maps import (
    FitRequest,
    Projection,
    ServedMap,
    SpacePair,
    canonical_json,
    pair_name,
)
from app.translate.warnings import AnswerWarning

DECODER = dataclass_codec(Decoder)
PROJECTION = dataclass_codec(Projection)

#: the method of a translation into the source's own space, which `auto` serves without a fit
IDENTITY = "identity"

#: most maps that a pair of spaces remembers
MAX_MAPS = 1_000


# --- what a request wants -------------------------------------------------------------------------


@dataclass(frozen=True)
class Translation:
    """Maps vectors of the source encoder into the target's space.

    enforces  whether it refuses a translator below the request's minimum
    """

    request: FitRequest
    enforces: bool = True

    #: the request's field of its vectors
    reads: ClassVar[str] = "vectors"

    @cached_property
    def key(self) -> Key:
        return ("translate", self.enforces, *self.request.key)

    def name(self, project: str) -> NameKey:
        """The name of the spaces that it needs."""
        return self.request.pair_name(project)

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
                (dim, dim), method=IDENTITY, options={}, pair=pair.both, warnings=about
            )
        about_pair = warnings.warnings_about_pair(services, source, target)
        served = translators.fit(services, context, source, target, self.request, about_pair)
        if self.enforces and self.request.min_quality:
            row = estimate.report_of(services, served)
            estimate.require_estimate(row, self.request.min_quality, self.request.index)
        return served


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
        return pair_name(project, self.anchor_set, self.encoder, None)

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
        key: Key = ("projection", row.blob, self.encode_power, self.ridge)

        def project() -> Projection:
            space = spaces.fitted_space(services, row)
            with services.take(services.turns.fits, row.project):
                made = linear.projector(space, power=self.encode_power, ridge=self.ridge)
            return Projection(made.float().contiguous(), space.mean.float())

        try:
            projection = services.cache.get_or_make(
                key, project, lambda value: value.nbytes, shared=PROJECTION
            )
        except InvalidOption as error:
            error.field = (error.field or "encode_power").removeprefix("options.")
            raise
        return ServedMap((dims[0], dims[1]), projection, key)


@dataclass(frozen=True)
class Decoding:
    """Maps relative vectors, encoded with `relative_power`, into the target's space.

    The method must not depend on the source.
    """

    request: FitRequest
    relative_power: float = 0.0

    reads: ClassVar[str] = "relative"

    @cached_property
    def key(self) -> Key:
        return ("decode", *self.request.key, self.relative_power)

    def name(self, project: str) -> NameKey:
        """The name of the spaces that it needs. A source, if named, must exist too."""
        return self.request.pair_name(project)

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """As `Translation.sides`."""
        assert pair.target is not None
        return pair.target, pair.target.anchor_set.size, pair.target.encoder.dim

    def make(self, services: Services, context: RequestContext, pair: SpacePair) -> ServedMap:
        """Raises MethodNotIndependent, UnknownOption, and InvalidOption for a power that the method
        cannot decode.
        """
        target, size, dim = self.sides(pair)
        method, options = self._choose_method(anchors=size)
        # Only a kernel depends on the space whose cosines it decodes.
        source = pair.source if methods.METHODS[method].core is None else None
        key: Key = ("decoder", target.blob, method, canonical_json(options))
        if source is not None:
            key = (*key, source.blob)

        def fit() -> Decoder:
            y = spaces.fitted_space(services, target)
            x = None if source is None else spaces.fitted_space(services, source)
            with services.take(services.turns.fits, target.project):
                return methods.fit_decoder(method, y, options, source=x)

        fitted = fit_queue.make_or_queue(
            services,
            context,
            fit_queue.Fit(
                arguments={**asdict(self.request), "relative_power": self.relative_power},
                seconds=fit_seconds(method, size, (dim, dim), options),
                key=key,
                make=fit,
                codec=DECODER,
            ),
        )
        hidden = ("encode_power", "keep_norms")
        return ServedMap(
            (size, dim),
            fitted,
            key,
            method=method,
            options={name: value for name, value in options.items() if name not in hidden},
            warnings=warnings.warnings_about_target(target),
        )

    def _choose_method(self, *, anchors: int) -> tuple[str, methods.Options]:
        """The method, and all its options."""
        method, overrides, power = self.request.method, self.request.options, self.relative_power
        if "encode_power" in overrides:
            raise UnknownOption(
                "`encode_power` does not apply to relative vectors. Set `relative_power` to the "
                "power that encoded them.",
                field="options.encode_power",
            )
        for name in ("min_quality", "index"):
            if getattr(self.request, name):
                raise InvalidOption(
                    f"`{name}` does not apply to relative vectors. Remove it, or send vectors of "
                    "a source.",
                    field=name,
                )
        if "keep_norms" in overrides:
            raise UnknownOption(
                "`keep_norms` does not apply to relative vectors, because they have no norms. "
                "Remove it.",
                field="options.keep_norms",
            )
        if method in ("auto", "graded"):
            method, overrides = "graded", {**methods.decoder_options(power), **overrides}
        elif method == "kernel" and self.request.source is None:
            overrides = {**methods.KERNEL_DECODER_OPTIONS, **overrides}
        options = methods.resolve(method, overrides, anchors=anchors)
        if methods.METHODS[method].decode is not None and method != "graded" and power != 0:
            raise InvalidOption(
                f"The method {method} only decodes `relative_power` 0, not {power}. "
                "Use the method graded.",
                field="relative_power",
            )
        return method, options


MapRequest = Translation | Relation | Decoding


# --- finding and applying -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MappedVectors:
    """The output of a map, and the map.

    truncated  rows of the inputs that the encoder read only in part
    warnings   about the map, and about the encoder of the inputs
    """

    output: TranslatedRows
    served: ServedMap
    truncated: Sequence[int]
    warnings: Sequence[AnswerWarning]


def find_map(
    services: Services, project: str, request: MapRequest, pair: SpacePair | None = None
) -> ServedMap | None:
    """Return the map without IO; None if it is not in memory or its names must be looked up."""
    if pair is None:
        pair = services.names.find(request.name(project))
    remembered = None if pair is None else pair.maps.get(request.key)
    if remembered is None or remembered.key is None:
        return remembered
    factor = services.cache.find(remembered.key)
    return None if factor is None else replace(remembered, factor=factor)


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
        pair.maps[request.key] = replace(served, factor=None)
    return served


def apply_map(
    services: Services,
    context: RequestContext,
    request: MapRequest,
    *,
    vectors: Tensor | None,
    inputs: Inputs | None = None,
    number_bytes: int = ANSWER_NUMBER_BYTES,
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
        output = served.start(services, context.project, read.vectors).result()
    about = [] if inputs is None else warnings.warnings_about_change(space.encoder)
    return MappedVectors(output, served, read.truncated, [*served.warnings, *about])


async def serve_map(
    services: Services,
    context: RequestContext,
    request: MapRequest,
    vectors: Tensor | None,
    inputs: Inputs | None = None,
    number_bytes: int = ANSWER_NUMBER_BYTES,
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
        )
        return await to_thread.run_sync(work)
    context.reserve_bytes(len(vectors) * served.dims[1] * number_bytes)
    try:
        product = served.start(services, context.project, vectors)
        await product.wait()
        return MappedVectors(product.result(), served, (), served.warnings)
    except AnchorageError as error:
        error.field = error.field or request.reads
        raise


def _fits(vectors: Tensor, served: ServedMap, limits: Limits) -> bool:
    """Whether neither the vectors' shape nor the size of the answer is refused."""
    count, (reads, makes) = vectors.shape[0], served.dims
    most = min(limits.vectors, limits.numbers // makes)
    return 0 < count <= most and vectors.shape[1] == reads


def run_fit(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run the job of a long fit: put into the cache what the request's repetition needs.

    Where a minimum applies, the translator is measured too, and its report is stored.
    """
    arguments: dict[str, Any] = {name: job.arguments[name] for name in job.arguments}
    power = arguments.pop("relative_power")
    del arguments["key"]
    request, context = FitRequest(**arguments), RequestContext.of_job(job)
    plan = Translation(request, enforces=False) if power is None else Decoding(request, power)
    progress(0, 1)
    served = prepare_map(services, context, plan)
    if served.id is not None and request.min_quality:
        estimate.report_of(services, served)
    progress(1, 1)
    return JobResult({"translator": served.id})
