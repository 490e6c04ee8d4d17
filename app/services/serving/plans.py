"""The serving path: vectors into relative ones, into another encoder's space, or out of relative coordinates.

What serves a request is found by the request's names alone once it was asked for: no SQL, no Redis, no fit. Everything that may
need those is behind `apply`; `find` and `Served.begin` do no IO.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from anyio import to_thread
from torch import Tensor

from app.errors import AnchorageError, InvalidOption, UnknownOption
from app.maths.geometry.space import Space
from app.maths.quality import candidates
from app.maths.translators import graded, methods
from app.maths.translators.decoder import Decoder, TranslatedRows
from app.maths.translators.translator import ProductPrecision, Translator
from app.services import incoming
from app.services.anchors import spaces
from app.services.context import Services
from app.services.encoders.encoding import Encoded, Inputs
from app.services.serving import products
from app.services.serving.products import (
    DecodeProduct,
    Product,
    RelateProduct,
    Running,
    TranslateProduct,
)
from app.services.translators import translators
from app.services.translators.translators import SpacePair
from app.services.upkeep.cache_codecs import DECODER, MATRIX
from app.storage import tables
from app.storage.cache import Key
from app.storage.name_cache import NameKey

#: ways to serve one pair that are remembered with it
MOST_RECIPES = 1_000


@dataclass(frozen=True)
class Form:
    """How an answer is written: what one of its numbers takes until it is sent, and where they are put."""

    number_bytes: int = incoming.ANSWER_NUMBER_BYTES
    empty: Callable[[int, int], Tensor] = torch.empty


#: float32, to be written as text or base64
FLOATS = Form()


@dataclass(slots=True, eq=False)
class Served:
    """A map ready to be applied, and what is said of it.

    product  the map
    reads    what its vectors are called in a request
    translator, id, method, options  how it was made, where a method made it; `translator` is None for relative vectors
    pair  the two spaces of a translator
    """

    product: Product
    reads: str = "vectors"
    method: str | None = None
    options: methods.Options | None = None
    id: str | None = None
    translator: Translator | None = None
    pair: tuple[tables.SpaceRow, tables.SpaceRow] | None = None

    @property
    def dims(self) -> tuple[int, int]:
        """Of what it reads and of what it makes."""
        return self.product.dims

    def begin(
        self, services: Services, vectors: Tensor, form: Form, precision: ProductPrecision
    ) -> Running:
        """Check what can be known without looking at numbers, take room for the answer, and begin. Raises the vector errors."""
        incoming.check_count(vectors, field=self.reads, limits=services.limits, dim=self.dims[0])
        incoming.reserve_answer(
            services, self.reads, len(vectors), dim=self.dims[1], number_bytes=form.number_bytes
        )
        try:
            return products.begin(
                services, self.product, vectors, form.empty(len(vectors), self.dims[1]), precision
            )
        except AnchorageError as error:
            raise error.at(self.reads) from None


@dataclass(frozen=True, eq=False)
class Answer:
    """What was made, by what; `truncated`: rows of inputs of which the encoder read only the beginning."""

    made: TranslatedRows
    served: Served
    given: Tensor
    truncated: Sequence[int] = ()


@dataclass(frozen=True)
class Translation:
    """Vectors of the source encoder into the target's space."""

    request: translators.Request

    #: what it reads is called, where that is neither vectors nor inputs
    field: ClassVar[str | None] = None

    @cached_property
    def key(self) -> Key:
        return ("translate", *self.request.key)

    def name(self, project: str) -> NameKey:
        """What it needs looked up."""
        return translators.name_of(
            project, self.request.anchor_set, self.request.source, self.request.target
        )

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """Whose vectors it reads, of what dimension, and of what it makes."""
        source, target = pair.both
        return source, source.encoder.dim, target.encoder.dim

    def make(
        self, services: Services, project: str, pair: SpacePair
    ) -> tuple[_Recipe, Sequence[Any]]:
        """Raises the option errors, QualityBelowMinimum, and Conflict when a space was deleted meanwhile."""
        source, target = pair.both
        fitted = translators.fit(services, project, source, target, self.request)
        translators.enforce_minimum(services, project, fitted, pair, self.request)
        build = partial(_translating, fitted.id, fitted.method, fitted.options, (source, target))
        return _Recipe((fitted.key,), build), (fitted.translator,)


@dataclass(frozen=True)
class Relation:
    """Vectors into their coordinates relative to the anchors, n(x) E. Power 0: the paper's cosines, which have no `ridge`.

    bits  of the grid that they are put on; only cosines have one
    """

    encoder: str
    anchor_set: str
    encode_power: float = 0.0
    ridge: float | None = None
    bits: int | None = None

    field: ClassVar[str | None] = None

    @property
    def key(self) -> Key:
        return ("relative", self.encoder, self.anchor_set, self.encode_power, self.ridge, self.bits)

    def name(self, project: str) -> NameKey:
        """What it needs looked up."""
        return translators.name_of(project, self.anchor_set, self.encoder, None)

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """As of a translation. Raises UnknownOption and InvalidOption for options that do not go together."""
        assert pair.source is not None
        if self.encode_power == 0 and self.ridge is not None:
            raise UnknownOption("ridge is an option of encode_power above 0 only", field="ridge")
        if self.encode_power != 0 and self.bits is not None:
            raise InvalidOption(
                "bits are of cosines: coordinates of another encode_power have no common range",
                field="bits",
            )
        return pair.source, pair.source.encoder.dim, pair.source.anchor_set.size

    def make(
        self, services: Services, project: str, pair: SpacePair
    ) -> tuple[_Recipe, Sequence[Any]]:
        """Raises UnknownOption and InvalidOption."""
        row, *_ = self.sides(pair)
        fitted = spaces.fitted_space(services, row)
        key: Key = ("projector", row.blob, self.encode_power, self.ridge)
        try:
            projector = services.cache.get_or_make(
                key,
                lambda: (
                    graded.projector(fitted.unit, power=self.encode_power, ridge=self.ridge)
                    .float()
                    .contiguous()
                ),
                lambda matrix: matrix.nbytes,
                shared=MATRIX,
            )
        except InvalidOption as error:
            error.field = (error.field or "encode_power").removeprefix("options.")
            raise
        return _Recipe((key, spaces.space_key(row)), partial(_relating, self.bits)), (
            projector,
            fitted,
        )


@dataclass(frozen=True)
class Decoding:
    """Relative vectors, made with `relative_power` wherever they come from, into the target's space by an independent method."""

    request: translators.Request
    relative_power: float = 0.0

    field: ClassVar[str | None] = "relative"

    @cached_property
    def key(self) -> Key:
        return ("decode", *self.request.key, self.relative_power)

    def name(self, project: str) -> NameKey:
        """What it needs looked up: a source that is named must be there, too."""
        return translators.name_of(
            project, self.request.anchor_set, self.request.source, self.request.target
        )

    def sides(self, pair: SpacePair) -> tuple[tables.SpaceRow, int, int]:
        """As of a translation."""
        assert pair.target is not None
        return pair.target, pair.target.anchor_set.size, pair.target.encoder.dim

    def make(
        self, services: Services, project: str, pair: SpacePair
    ) -> tuple[_Recipe, Sequence[Any]]:
        """Raises MethodNotIndependent, UnknownOption, and InvalidOption for a power that the method cannot decode."""
        target, *_ = self.sides(pair)
        method, options = self._resolve(target.anchor_set.size)
        key: Key = ("decoder", target.blob, method, translators.canonical(options))
        decoder = services.cache.get_or_make(
            key,
            lambda: methods.fit_decoder(method, spaces.fitted_space(services, target), options),
            lambda made: made.nbytes,
            shared=DECODER,
        )
        shown = {
            name: value
            for name, value in options.items()
            if name not in ("encode_power", "keep_norms", "centre")
        }

        return _Recipe((key,), partial(_decoding, method, shown)), (decoder,)

    def _resolve(self, anchors: int) -> tuple[str, methods.Options]:
        method, given = self.request.method, self.request.options
        if "encode_power" in given:
            raise UnknownOption(
                "relative vectors are encoded already; say how with relative_power",
                field="options.encode_power",
            )
        if self.request.min_quality:
            raise InvalidOption(
                "of relative vectors nothing is promised: send vectors of a source",
                field="min_quality",
            )
        if "centre" in given:
            raise UnknownOption(
                "relative vectors are about the anchors' mean", field="options.centre"
            )
        if "keep_norms" in given:
            raise UnknownOption(
                "relative vectors have lost their norms: there are none to keep",
                field="options.keep_norms",
            )
        if method in ("auto", "graded"):
            method, given = "graded", {**candidates.decoder_options(self.relative_power), **given}
        options = methods.resolve(method, given, anchors=anchors)
        if methods.METHODS[method].independent and method != "graded" and self.relative_power != 0:
            raise InvalidOption(
                f"{method} decodes plain cosines; vectors of power {self.relative_power} need graded",
                field="relative_power",
            )
        return method, options


Asked = Translation | Relation | Decoding


@dataclass(frozen=True, eq=False)
class _Recipe:
    """How to put a Served together from what the cache holds. It holds no tensors itself: the cache is what bounds them."""

    keys: tuple[Key, ...]
    build: Callable[..., Served]


def find(services: Services, project: str, asked: Asked) -> Served | None:
    """What serves a request, if it was asked for lately and its names mean the same now; no IO."""
    pair: SpacePair | None = services.names.find(asked.name(project))
    return None if pair is None else _ready(services, pair, asked)


def make(services: Services, project: str, asked: Asked) -> Served:
    """What serves a request, found, or else looked up and fitted. Raises the not-found and option errors."""
    return _made(services, project, asked, translators.resolve(services, asked.name(project)))


def _ready(services: Services, pair: SpacePair, asked: Asked) -> Served | None:
    """What serves the request by this pair, if all of it is in memory."""
    recipe: _Recipe | None = pair.recipes.get(asked.key)
    if recipe is None:
        return None
    parts = [services.cache.find(key) for key in recipe.keys]
    return None if any(part is None for part in parts) else recipe.build(*parts)


def _made(services: Services, project: str, asked: Asked, pair: SpacePair) -> Served:
    served = _ready(services, pair, asked)
    if served is not None:
        return served
    recipe, parts = asked.make(services, project, pair)
    if len(pair.recipes) >= MOST_RECIPES:
        pair.recipes.clear()
    pair.recipes[asked.key] = recipe
    return recipe.build(*parts)


def apply(
    services: Services,
    project: str,
    asked: Asked,
    *,
    vectors: Tensor | None,
    inputs: Inputs | None = None,
    form: Form = FLOATS,
    precision: ProductPrecision = "float32",
    pair: SpacePair | None = None,
) -> Answer:
    """Vectors or inputs, by what serves the request. What is wrong with them is found before anything is fitted.

    pair  what the request's names stand for, where the caller has looked it up

    Raises the not-found, option and vector errors, MethodNotIndependent, Conflict, and as `encode`.
    """
    pair = pair or translators.resolve(services, asked.name(project))
    space, reads, makes = asked.sides(pair)
    field, count = incoming.exactly_one(vectors, inputs)
    field = asked.field or field
    incoming.reserve_answer(services, field, count, dim=makes, number_bytes=form.number_bytes)
    if vectors is not None and asked.field is not None:
        given = Encoded(
            incoming.checked_vectors(vectors, field=field, limits=services.limits, dim=reads)
        )
    else:
        given = incoming.vectors_or_encoded(services, space.encoder, vectors, inputs)
    served = _made(services, project, asked, pair)
    try:
        made = products.begin(
            services, served.product, given.vectors, form.empty(count, makes), precision
        ).result()
    except AnchorageError as error:
        raise error.at(field) from None
    return Answer(made, served, given.vectors, given.truncated)


async def serve(
    services: Services,
    project: str,
    asked: Asked,
    vectors: Tensor | None,
    inputs: Inputs | None = None,
    form: Form = FLOATS,
    precision: ProductPrecision = "float32",
) -> Answer:
    """Vectors or inputs, by what serves the request: at once where that takes no IO, else in a thread. Raises as `apply`."""
    served = None if vectors is None or inputs is not None else find(services, project, asked)
    if served is None or vectors is None:
        work = partial(
            apply,
            services,
            project,
            asked,
            vectors=vectors,
            inputs=inputs,
            form=form,
            precision=precision,
        )
        return await to_thread.run_sync(work)
    running = served.begin(services, vectors, form, precision)
    await running.wait()
    return Answer(result(running, served.reads), served, vectors)


def result(running: Running, field: str) -> TranslatedRows:
    """What a product made; its errors name the field. Raises NonFinite, OutOfRange."""
    try:
        return running.result()
    except AnchorageError as error:
        raise error.at(field) from None


def _translating(
    id: str,
    method: str,
    options: methods.Options,
    pair: tuple[tables.SpaceRow, tables.SpaceRow],
    translator: Translator,
) -> Served:
    product = TranslateProduct(translator)
    return Served(product, method=method, options=options, id=id, translator=translator, pair=pair)


def _relating(bits: int | None, projector: Tensor, space: Space) -> Served:
    return Served(RelateProduct(projector, space.mean.float(), bits))


def _decoding(method: str, options: methods.Options, decoder: Decoder) -> Served:
    return Served(DecodeProduct(decoder), reads="relative", method=method, options=options)
